/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * never_ran.c - the file that says that nothing ran; a source that is told so; which memory is here
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "loop.h"

static char folder[] = "/tmp/farfork-until-go-XXXXXX", file[64], options[96];

static void setup(void)
{
    image_new(4000);
}

static void begin(void)
{
    must(loop_mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/mark", folder);
    snprintf(options, sizeof(options), "until-go=%s", file);
}

static void end(void)
{
    unlink(file);
    must(!rmdir(folder));
}

static bool is_there(void)
{
    return !access(file, F_OK);
}

/* It is there until GO was read, and not a moment longer */
static void look(struct move *m, enum stage stage)
{
    (void)m;
    if (stage >= D_ACCEPT && stage <= D_GO)
        must(is_there());
    else if (stage == D_RUNNING)
        must(!is_there());
}

static void removed(void)
{
    static struct move m;

    begin();
    m = (struct move){.tcp = true, .options = options, .hook = look};
    move_run(&m);
    move_must_succeed(&m);
    end();
}

/* One that cannot be removed lets nothing run, and the source hears that. It is there, or back
 * again: should the destination be killed before, that says the same */
static void stays_at(const char *faults, bool there)
{
    static struct move m;

    begin();
    loop_arm(faults);
    m = (struct move){.tcp = true, .resumes = true, .options = options};
    move_run(&m);
    must(m.src.rc == -ETIME && m.dst.rc == -ESTALE && !m.ran && is_there() == there);
    end();
}

static void stays(void)
{
    stays_at("dest.go=fail", true);
}

static void stays_for_unlink(void)
{
    stays_at("dest.unmark=fail@1", true);
}

static void stays_for_fsync(void)
{
    stays_at("dest.unmark=fail@2", true);
}

/* made, twice; removed, and not made again: an error of the disk at both */
static void gone_for_fsync(void)
{
    stays_at("dest.unmark=fail@2,dest.mark=fail@3", false);
}

/* ... or made again, and not surely on disk: nothing ran, whatever the disk has of that */
static void back_without_fsync(void)
{
    stays_at("dest.unmark=fail@2,dest.mark=fail@4", true);
}

/* No room for what it says: no source goes on, and nothing was stopped for that */
static void unsigned_file(void)
{
    static struct move m;

    begin();
    loop_arm("dest.sign=fail:28");
    m = (struct move){.tcp = true, .options = options};
    move_run(&m);
    must(m.dst.rc == -ENOSPC && m.src.rc && m.src.stage < S_STATE && !m.went && !m.ran && is_there());
    end();
}

static char refusal[sizeof(((struct ff_error *)NULL)->text)];

static int try_listen(const char *path)
{
    char text[128];
    struct ff_address *a;
    struct ff_dest *d = NULL;
    struct ff_error err;

    snprintf(text, sizeof(text), ",until-go=%s", path);
    a = loop_address(0, text);
    int rc = ff_dest_new(a, &d, &err);
    must(!rc || strstr(err.text, "until-go"));
    snprintf(refusal, sizeof(refusal), "%s", rc ? err.text : "");
    ff_dest_free(d);
    ff_address_free(a);
    return rc;
}

/* What another destination left stays the truth about that one; one that nobody came to leaves it */
static void refused(void)
{
    begin();
    must(!try_listen(file) && is_there());
    must(try_listen(file) == -EEXIST && is_there());
    unlink(file);
    must(!symlink("/dev/null", file) && try_listen(file) == -EEXIST);
    unlink(file);
    must(!symlink("nowhere", file) && try_listen(file) == -EEXIST); /* and makes no such file */
    unlink(file);
    must(try_listen("/nowhere/mark") == -ENOENT);
    must(try_listen(folder) == -EEXIST);
    for (unsigned i = 1; i <= 2; i++) { /* made, on disk: nothing is left, and it can be tried again */
        loop_arm(i == 1 ? "dest.mark=fail:28@1" : "dest.mark=fail:28@2");
        must(try_listen(file) == -ENOSPC && !is_there());
        loop_arm("");
        must(!try_listen(file) && is_there());
        unlink(file);
    }
    end();
}

/* --- somebody else knows --- */

static char older[32];

/* What the file says now, without its newline */
static const char *mark(void)
{
    static char text[32];
    FF_AUTO_CLOSE int fd = open(file, O_RDONLY | O_CLOEXEC);

    memset(text, 0, sizeof(text));
    must(fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static void keep_mark(struct move *m, enum stage stage)
{
    (void)m;
    if (stage == D_ACCEPT)
        must(!*mark());
    if (stage == D_GO)
        strcpy(older, mark());
}

static void nothing_went(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage == S_GO)
        must(ff_source_not_started(m->source, mark(), &err) == -EINVAL);
}

static void tell(struct move *m, bool source)
{
    struct ff_error err;

    if (!source) {
        ff_dest_cancel(m->dest);
        return;
    }
    /* of no move, of another one, and what an older file says */
    must(ff_source_not_started(m->source, "", &err) == -EINVAL && strstr(err.text, "not this move's"));
    must(ff_source_not_started(m->source, "0123456789abcdef", &err) == -EINVAL);
    must(ff_source_check_mark(m->source, older, &err) == -EINVAL && !ff_source_check_mark(m->source, mark(), &err));
    must(ff_source_not_started(m->source, mark(), &err) == -ETIME && strstr(err.text, "may go on here"));
    must(ff_source_not_started(m->source, mark(), &err) == -EINVAL);
}

static void told(void)
{
    static struct move m;

    begin();
    m = (struct move){.tcp = true, .options = options, .hook = keep_mark};
    move_run(&m); /* another move, whose file a rollback would bring back */
    move_must_succeed(&m);
    loop_arm("source.gone=fail");
    m = (struct move){.tcp = true, .resumes = true, .options = options, .hook = nothing_went, .broken = tell};
    move_run(&m);
    must(m.src.rc == -EINVAL && !m.ran); /* the harness asks once more */
    end();
}

/* The source has heard RUNNING: nobody knows better */
static void tell_wrongly(struct move *m, bool source)
{
    struct ff_error err;

    if (!source)
        return;
    must(m->src.stage != S_DONE || ff_source_runs_there(m->source));
    must(ff_source_not_started(m->source, "", &err) == -EINVAL);
}

/* A monitor asks at any time: ThreadSanitizer looks on */
static atomic_bool asks;
static pthread_t asker;

static void *ask(void *arg)
{
    const struct move *m = arg;
    unsigned n = 0;

    while (atomic_load(&asks))
        n += ff_source_check_mark(m->source, "", NULL) == -EINVAL;
    must(n);
    return NULL;
}

static void ask_meanwhile(struct move *m, enum stage stage)
{
    if (stage != S_GO || atomic_exchange(&asks, true))
        return;
    must(!pthread_create(&asker, NULL, ask, m));
}

static void runs_there(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .resumes = true, .broken = tell_wrongly, .hook = ask_meanwhile};
    loop_arm("dest.fault=delay:2000,source.done=fail@1");
    move_run(&m);
    must(atomic_exchange(&asks, false) && !pthread_join(asker, NULL));
    must(atomic_load(&m.breaks_src));
    move_must_succeed(&m);
}

/* --- what is here: the destination has the regions in the other order --- */

static void count(struct move *m, enum stage stage)
{
    uint64_t len;

    for (unsigned i = 0; i < 2 && (stage == D_START || stage == D_END); i++) {
        bool here = ff_dest_is_present(m->dest, i, CELL, &len);
        must(here == (stage == D_END) && len == m->area[1 - i].len_bytes - CELL);
        must(ff_dest_missing_bytes(m->dest, i) == (here ? 0 : m->area[1 - i].len_bytes));
    }
    if (stage == D_RUNNING) { /* what was touched first, and nothing else: nobody fetches yet */
        must(ff_dest_is_present(m->dest, 1, 3 * CELL, &len) && len == CELL);
        must(!ff_dest_is_present(m->dest, 1, 0, &len) && len == 3 * CELL);
        must(!ff_dest_is_present(m->dest, 1, 4 * CELL, &len));
        must(ff_dest_missing_bytes(m->dest, 1) == m->area[0].len_bytes - CELL);
    }
}

static void first_is_here(struct move *m, enum stage stage)
{
    struct ff_stats st;

    if (stage == D_RUNNING)
        for (unsigned ms = 0; ms < 10000; ms++, usleep(1000)) {
            ff_dest_stats(m->dest, &st);
            if (st.first_touch)
                break;
        }
    count(m, stage);
}

static void present(void)
{
    static struct move m;

    m = (struct move){.tcp = true, .n_first = 1, .first = {{0, 3 * CELL}}, .hook = first_is_here};
    move_run(&m);
    move_must_succeed(&m);
}

/* --- it has ended by itself --- */

static const char *down_file(void)
{
    static char path[96];

    snprintf(path, sizeof(path), "%s.shut-down", file);
    return path;
}

static bool is_shut_down(void)
{
    return !access(down_file(), F_OK);
}

/* A link in its place leads nowhere */
static void shut_down_by_link(struct move *m)
{
    struct ff_error err;

    must(!symlink("nowhere", down_file()));
    must(ff_dest_shut_down(m->dest, true, &err) == -ELOOP && !is_shut_down());
    must_ok(ff_dest_shut_down(m->dest, false, &err), err);
}

static void shut_down(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage == D_GO)
        must(ff_dest_shut_down(m->dest, true, &err) == -EINVAL && !is_shut_down());
    if (stage != D_RUNNING)
        return;
    shut_down_by_link(m);
    must_ok(ff_dest_shut_down(m->dest, true, &err), err);
    must(is_shut_down() && !is_there());
    must_ok(ff_dest_shut_down(m->dest, true, &err), err); /* again */
    must_ok(ff_dest_shut_down(m->dest, false, &err), err);
    must(!is_shut_down());
    must_ok(ff_dest_shut_down(m->dest, false, &err), err);
    must_ok(ff_dest_shut_down(m->dest, true, &err), err);
}

/* That is written down as well, and stays; the next destination does not take it for its own */
static void ended_itself(void)
{
    static struct move m;

    begin();
    m = (struct move){.tcp = true, .options = options, .hook = shut_down};
    move_run(&m);
    move_must_succeed(&m);
    must(is_shut_down());
    must(try_listen(file) == -EEXIST && !is_there() && strstr(refusal, "mark.shut-down: ") &&
         strstr(refusal, "once its disks are committed"));
    unlink(down_file());
    must(!symlink("nowhere", down_file()) && try_listen(file) == -EEXIST && !is_there());
    unlink(down_file());
    must(!try_listen(file));
    end();
}

static bool on_disk; /* it is there after a failure */

static void fails_once(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage != D_RUNNING)
        return;
    must(ff_dest_shut_down(m->dest, true, &err) == -ENOSPC && is_shut_down() == on_disk);
    must_ok(ff_dest_shut_down(m->dest, true, &err), err);
    must(is_shut_down());
}

static void fails_to_run_again(struct move *m, enum stage stage)
{
    struct ff_error err;

    if (stage != D_RUNNING)
        return;
    must_ok(ff_dest_shut_down(m->dest, true, &err), err);
    must(ff_dest_shut_down(m->dest, false, &err) == -ENOSPC && is_shut_down() == on_disk);
    must_ok(ff_dest_shut_down(m->dest, false, &err), err);
    must(!is_shut_down());
    must_ok(ff_dest_shut_down(m->dest, true, &err), err);
}

/* Made or removed, or not surely on disk: it can be said again, and is true then */
static void ended_unwritten(void)
{
    static const char *const faults[] = {
        "dest.shut-down=fail:28@1", "dest.shut-down=fail:28@2", "dest.shut-down=fail:28@3",
        "dest.shut-down=fail:28@4"};
    static struct move m;

    begin();
    for (unsigned i = 0; i < FF_ARRAY_LEN(faults); i++) {
        on_disk = i == 1 || i == 2;
        loop_arm(faults[i]);
        m = (struct move){.tcp = true, .options = options,
                          .hook = i < 2 ? fails_once : fails_to_run_again};
        move_run(&m);
        move_must_succeed(&m);
        must(is_shut_down() && !unlink(down_file()));
    }
    end();
}

int main(int argc, char **argv)
{
    static const struct loop_test tests[] = {
        {"removed as GO is read", removed, 0},
        {"it cannot be removed", stays, 0},
        {"it cannot be removed: unlink()", stays_for_unlink, 0},
        {"it cannot be removed: fsync()", stays_for_fsync, 0},
        {"it cannot be put back either", gone_for_fsync, 0},
        {"put back, without fsync()", back_without_fsync, 0},
        {"it cannot be made", refused, 0},
        {"it cannot say of which move", unsigned_file, 0},
        {"it has ended by itself", ended_itself, 0},
        {"that it has ended cannot be written down", ended_unwritten, 0},
        {"told that nothing ran", told, 0},
        {"told so although it runs", runs_there, 30},
        {"what is here", present, 0},
    };
    return loop_main(argc, argv, setup, tests, FF_ARRAY_LEN(tests));
}
