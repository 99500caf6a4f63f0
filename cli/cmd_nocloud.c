/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cmd_nocloud.c - farfork nocloud: cloud-init's data in an image, of another instance
 */
#include <getopt.h>
#include <stdio.h>

#include "cli.h"
#include "defaults.h"
#include "nocloud.h"
#include "value.h"

static int nocloud_usage(FILE *out)
{
    fputs("usage: farfork nocloud [OPTION...] IMAGE\n\n"
          "Change cloud-init's NoCloud data in an ISO 9660 image, where they are; vmclone runs this for\n"
          "an image of each child's own.\n\n"
          "  --instance-id ID        in meta-data; added where there is none\n"
          "  --hostname NAME         local-hostname in meta-data; hostname and fqdn in user-data\n"
          "  --mac OLD=NEW           in meta-data and network-config; as often as needed\n"
          "  -h, --help              print this text\n\n"
          "Exit code: 0; 1 nothing was changed; 2 usage.\n",
          out);
    return out == stdout ? 0 : EXIT_USAGE;
}

int cmd_nocloud(int argc, char **argv)
{
    enum { INSTANCE = 256, HOSTNAME, MAC };
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"instance-id", required_argument, NULL, INSTANCE},
                                            {"hostname", required_argument, NULL, HOSTNAME},
                                            {"mac", required_argument, NULL, MAC},
                                            {0}};
    struct nocloud n = {0};
    struct ff_error why;
    int c, code = -1;

    while (code < 0 && (c = getopt_long(argc, argv, "h", options, NULL)) != -1)
        switch (c) {
        case INSTANCE: n.instance_id = optarg; break;
        case HOSTNAME: n.hostname = optarg; break;
        case MAC: strv_add(&n.macs, "%s", optarg); break;
        default: code = c == 'h' ? nocloud_usage(stdout) : value_unknown("farfork nocloud");
        }
    if (code < 0 && optind + 1 != argc)
        code = nocloud_usage(stderr);
    if (code < 0 && nocloud_check(&n, &why)) {
        fprintf(stderr, "farfork: %s\n", why.text);
        code = EXIT_USAGE;
    }
    if (code < 0) {
        code = nocloud_change(argv[optind], &n, false, NULL, &why) ? 1 : 0;
        if (code)
            fprintf(stderr, "farfork: %s\n", why.text);
    }
    strv_free(&n.macs);
    return code;
}
