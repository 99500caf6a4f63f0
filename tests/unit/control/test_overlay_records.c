/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_overlay_records.c - records of overlays, how they are made, and that none goes that is in
 * use
 */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "ps.h"
#include "in_use.h"
#include "overlay_records.h"
#include "rundir.h"
#include "spawn.h"

static char base[] = "/tmp/ff-overlays-XXXXXX";
static struct ff_error why;

static int make_base(void **state)
{
    (void)state;
    return mkdtemp(base) ? 0 : -1;
}

static int remove_base(void **state)
{
    (void)state;
    return rmdir(base); /* fails if a test left something behind */
}

static char *in_base(const char *name)
{
    return xprintf("%s/%s", base, name);
}

static void make(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static pid_t user_of(const char *path)
{
    struct strv files = {0};
    pid_t user;

    strv_add(&files, "%s", path);
    file_users(&files, &user);
    strv_free(&files);
    return user;
}

static void test_in_use(void **state)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 1};
    FF_AUTO_FREE char *file = in_base("file"), *other = in_base("other"), *link = in_base("link");
    (void)state;

    assert_int_equal(user_of(file), USER_NONE);
    make(file);
    make(other);
    assert_int_equal(user_of(file), USER_NONE);
    int fd = open(file, O_PATH);
    assert_int_equal(user_of(file), getpid());
    assert_int_equal(user_of(other), USER_NONE);
    close(fd);

    /* a process that has it open by another name is as one of another host: QEMU's locks tell */
    assert_int_equal(rename(file, link), 0);
    fd = open(link, O_RDONLY);
    assert_int_equal(rename(link, file), 0);
    assert_int_equal(user_of(file), getpid()); /* the kernel follows the name */
    close(fd);
    assert_int_equal(linkat(AT_FDCWD, file, AT_FDCWD, link, 0), 0);
    fd = open(link, O_RDONLY);
    assert_int_equal(user_of(file), USER_NONE);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
    assert_int_equal(user_of(file), USER_UNSEEN);
    close(fd);
    assert_int_equal(user_of(file), USER_NONE);
    unlink(file);
    unlink(link);
    unlink(other);
}

/* What another user's process, started with @words, says of the file to a user who may not look at it */
static pid_t beside(const char *file, const char *words)
{
    FF_AUTO_FREE char *program = in_base("qemu-system-x86_64");
    FF_AUTO_FREE char *line = xprintf("cp /bin/dash %s && exec %s -c 'echo; sleep 100; :' %s", program, program,
                                      words);
    struct spawn run;
    int status;

    assert_false(spawn_start(&run, NULL, line, &why));
    struct pollfd p = {.fd = run.out, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
    pid_t look = fork();
    if (!look) {
        if (setresgid(4242, 4242, 4242) || setresuid(4242, 4242, 4242))
            _exit(99);
        _exit(user_of(file) == USER_UNSEEN);
    }
    assert_int_equal(waitpid(look, &status, 0), look);
    spawn_end(&run, 0);
    spawn_free(&run);
    unlink(program);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) ? USER_UNSEEN : USER_NONE;
}

/* Who may not look at a process does not take what that names for free */
static void test_other_users(void **state)
{
    FF_AUTO_FREE char *file = in_base("overlay-of-another"), *words = xprintf("-drive file=%s,file.locking=off", file);
    (void)state;

    if (geteuid())
        skip();
    make(file);
    assert_int_equal(chmod(base, 0755), 0);
    assert_int_equal(chown(file, 4242, 4242), 0);
    assert_int_equal(beside(file, words), USER_UNSEEN);
    assert_int_equal(beside(file, "-drive file=x"), USER_NONE);
    assert_int_equal(chmod(base, 0700), 0);
    unlink(file);
}

/* Nobody is seen for want of descriptors: that is not to say that nobody is there */
static void test_not_seen(void **state)
{
    FF_AUTO_FREE char *file = in_base("file");
    struct rlimit was, few;
    (void)state;

    make(file);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = open("/dev/null", O_RDONLY); /* the number that is free */
    close(next);
    for (int left = 0; left <= 1; left++) { /* the second one is for /proc */
        few = (struct rlimit){.rlim_cur = (rlim_t)(next + left), .rlim_max = was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        pid_t user = user_of(file);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
        assert_int_equal(user, USER_UNSEEN);
    }
    assert_int_equal(user_of(file), USER_NONE);
    unlink(file);
}

static void test_create(void **state)
{
    FF_AUTO_FREE char *file = in_base("file"), *image = in_base("image"), *link = in_base("link");
    struct stat st, like;
    (void)state;

    mode_t mask = umask(0);
    assert_int_equal(overlay_records_create(file, NULL, NULL, &why), 0);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(overlay_records_create(file, NULL, NULL, &why), -EEXIST);
    unlink(file);
    assert_int_equal(symlink(file, link), 0);
    assert_int_equal(overlay_records_create(link, NULL, NULL, &why), -EEXIST);
    assert_non_null(strstr(why.text, link));
    assert_int_equal(access(file, F_OK), -1);

    make(image);
    assert_int_equal(chmod(image, 04751), 0); /* not what a program has */
    if (!geteuid())
        assert_int_equal(chown(image, 4321, 4322), 0);
    assert_int_equal(overlay_records_create(file, image, NULL, &why), 0);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(stat(image, &like), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(st.st_uid, like.st_uid);
    assert_int_equal(st.st_gid, like.st_gid);
    umask(mask);
    unlink(file);
    unlink(link);
    unlink(image);
}

/* Where somebody else can put a link in the place of a fresh overlay, the program that fills it would
 * write over what that leads to */
static void test_replaced(void **state)
{
    static const struct { mode_t mode; int rc; } folders[] = {
        {0777, -EPERM}, {0702, -EPERM}, {01777, 0}, {0775, 0}, {0755, 0}};
    FF_AUTO_FREE char *folder = in_base("folder"), *there = in_base("folder/file");
    FF_AUTO_FREE char *file = in_base("file"), *was = in_base("was"), *target = in_base("target");
    struct stat st;
    int fd;
    (void)state;

    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < FF_ARRAY_LEN(folders); i++) {
        assert_int_equal(chmod(folder, folders[i].mode), 0);
        assert_int_equal(overlay_records_create(there, NULL, NULL, &why), folders[i].rc);
        assert_int_equal(unlink(there), folders[i].rc ? -1 : 0);
    }
    assert_int_equal(rmdir(folder), 0);

    json_t *words = json_pack("[s,s,s,s]", "sh", "-c", "echo overlay > \"$0\"", file);
    make(target);
    assert_int_equal(overlay_records_create(file, NULL, &fd, &why), 0);
    assert_int_equal(rename(file, was), 0);
    assert_int_equal(symlink(target, file), 0);
    assert_int_equal(overlay_records_fill(fd, file, words, 60000, &why), 0);
    close(fd);
    assert_int_equal(stat(target, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(stat(was, &st), 0);
    assert_int_equal(st.st_size, 8);
    json_decref(words);
    unlink(file);
    unlink(was);
    unlink(target);
}

static void test_record(void **state)
{
    FF_AUTO_FREE char *there = in_base("there");
    json_t *odd = json_pack("[s,s]", "/a \"b\"\nc", "/d"), *bad = json_pack("[s,i]", "/e", 1);
    (void)state;

    assert_int_equal(overlay_records_add("/no-such-folder", 1, odd, &why), -ENOENT);
    assert_int_equal(overlay_records_add(base, 1, bad, &why), -EINVAL);
    assert_false(overlay_records_left(base));
    assert_int_equal(overlay_records_add(base, 1, odd, &why), 0);
    assert_int_equal(overlay_records_add(base, 1, odd, &why), 0);
    struct strv w;
    assert_int_equal(overlay_records_read(base, 1, &w, &why), 0);
    assert_int_equal(w.n, 2);
    assert_string_equal(w.v[0], "/a \"b\"\nc");
    assert_string_equal(w.v[1], "/d");
    strv_free(&w);
    overlay_records_forget(base, 1);
    assert_false(overlay_records_left(base));
    assert_int_equal(overlay_records_read(base, 1, &w, &why), 0);
    assert_int_equal(w.n, 0);

    /* of files that cannot all be made none is, and what was there stays */
    make(there);
    FF_AUTO_FREE char *fresh = in_base("fresh");
    json_t *some = json_pack("[s,s]", fresh, there);
    assert_int_equal(overlay_records_make(base, 1, some, &why), -EEXIST);
    assert_int_equal(access(fresh, F_OK), -1);
    assert_int_equal(access(there, F_OK), 0);
    assert_false(overlay_records_left(base));
    unlink(there);
    json_decref(some);
    json_decref(odd);
    json_decref(bad);
}

/* A run directory whose agent, or child 1, is this process */
static char *fork_dir(const char *id, bool agent, bool child, bool kept)
{
    json_int_t start = (json_int_t)process_start_time(getpid());
    char *dir = NULL;

    assert_int_equal(rundir_make(base, id, "n", &dir, &why), 0);
    json_t *s = json_pack("{ss si sI sb s[{si si sI}]}", "id", id, "agent", (int)getpid(), "start",
                          agent ? start : 0, "kept", kept, "children", "number", 1, "pid",
                          (int)getpid(), "start", child ? start : 0);
    assert_int_equal(rundir_write_state(dir, s), 0);
    json_decref(s);
    return dir;
}

/* What cannot be read is not empty: nothing that it may name is removed, or forgotten */
static void test_broken(void **state)
{
    static const char *const broken[] = {"\"%s\"\n\"/half", "%s\n",
                                         "\"%s\"\n1\n", NULL};
    FF_AUTO_FREE char *file = in_base("file"), *dir = fork_dir("f", false, false, true);
    FF_AUTO_FREE char *record = xprintf("%s/1.overlays", dir);
    struct strv w, kept = {0};
    (void)state;

    make(file);
    for (size_t i = 0; i < FF_ARRAY_LEN(broken); i++) {
        if (broken[i]) {
            FILE *f = fopen(record, "we");
            assert_true(fprintf(f, broken[i], file) > 0);
            fclose(f);
        } else {
            unlink(record);
            assert_int_equal(mkdir(record, 0700), 0); /* root reads any file */
        }
        assert_int_equal(overlay_records_read(dir, 1, &w, &why), -EIO);
        assert_int_equal(w.n, 0);
        assert_non_null(strstr(why.text, record));
        overlay_records_sweep(base, "f", &kept);
        assert_int_equal(kept.n, i + 1);
        assert_non_null(strstr(kept.v[i], record));
        overlay_records_unmake(dir, 1);
        assert_int_equal(access(file, F_OK), 0);
        assert_int_equal(access(record, F_OK), 0);
    }
    strv_free(&kept);
    assert_int_equal(rmdir(record), 0);
    unlink(file);
    rundir_remove(dir);
}

static void test_sweep(void **state)
{
    static const struct { bool agent, child; unsigned number; bool goes; } cases[] = {
        {true, true, 1, false}, {true, false, 1, true}, {false, true, 1, false},
        {false, false, 1, true}, {true, true, 2, false}, /* it is about to be started */
        {false, true, 2, true}};
    FF_AUTO_FREE char *file = in_base("fork-f-1-disk0.qcow2");
    json_t *files = json_pack("[s]", file);
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *dir = fork_dir("f", cases[i].agent, cases[i].child, false);
        FF_AUTO_FREE char *its = xprintf("%s/fork-f-%u-disk0.qcow2", base, cases[i].number);
        json_t *own = json_pack("[s]", its);
        assert_int_equal(overlay_records_make(dir, cases[i].number, own, &why), 0);
        overlay_records_sweep(base, NULL, NULL);
        assert_int_equal(access(its, F_OK), cases[i].goes ? -1 : 0);
        assert_int_equal(overlay_records_left(dir), !cases[i].goes);
        assert_int_equal(access(dir, F_OK), 0);
        unlink(its);
        rundir_remove(dir);
        json_decref(own);
    }

    FF_AUTO_FREE char *dir = fork_dir("f", false, false, true);
    assert_int_equal(overlay_records_make(dir, 1, files, &why), 0);
    int fd = open(file, O_RDONLY);
    struct strv kept = {0};
    overlay_records_sweep(base, "g", &kept);
    assert_int_equal(kept.n, 0);
    overlay_records_sweep(base, "f", &kept);
    assert_int_equal(kept.n, 1);
    assert_non_null(strstr(kept.v[0], file));
    assert_non_null(strstr(kept.v[0], "child 1 of fork f")); /* by its number: this process */
    assert_int_equal(access(file, F_OK), 0);
    close(fd);
    overlay_records_sweep(base, NULL, NULL);
    assert_int_equal(access(file, F_OK), -1);
    assert_int_equal(access(dir, F_OK), -1);
    strv_free(&kept);
    json_decref(files);
}

/* A record that somebody else has written names no file that --kill removes: other names than forks
 * give stay, and what is no regular file */
static void test_not_named(void **state)
{
    static const struct { const char *name; bool goes; } cases[] = {
        {"fork-f-1-disk0.qcow2", true}, {"fork-f-1-disk12.iso", true},
        {"fork-f-1-disk0.fork-g-disk0.qcow2", true}, {"fork-f-1-disk0.qcow2.fork-g-disk0.qcow2", true},
        /* of another child, of another fork, of a parent */
        {"fork-f-2-disk0.qcow2", false}, {"fork-f-11-disk0.qcow2", false}, {"fork-a.b_c-d-1-disk0.qcow2", false},
        {"fork-f-1-disk0-2-disk0.qcow2", false}, {"fork-g-1-disk0.fork-f-1-disk0.qcow2", false},
        {"an image.img.fork-f-disk1.qcow2", false}, {"fork- it.img.fork-f-disk1.qcow2", false}, {"passwd", false}, {"disk0.qcow2", false},
        {"fork-f-1-disk0", false}, {"fork-f-1-disk0.raw", false}, {"fork-f-1-disk.qcow2", false},
        {"fork--disk0.qcow2", false}, {"fork-f 1-disk0.qcow2", false}, {"xfork-f-1-disk0.qcow2", false},
        {"a.fork-f-disk0.qcow2.bak", false}};
    FF_AUTO_FREE char *link = in_base("fork-f-1-disk1.qcow2"), *target = in_base("target");
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *file = in_base(cases[i].name), *dir = fork_dir("f", false, false, true);
        json_t *files = json_pack("[s]", file);
        struct strv kept = {0};
        assert_int_equal(overlay_records_make(dir, 1, files, &why), 0);
        overlay_records_sweep(base, "f", &kept);
        assert_int_equal(kept.n, !cases[i].goes);
        assert_int_equal(access(file, F_OK), cases[i].goes ? -1 : 0);
        if (!cases[i].goes) {
            assert_non_null(strstr(kept.v[0], file));
            overlay_records_forget(dir, 1);
            assert_int_equal(unlink(file), 0);
            rundir_remove(dir);
        }
        strv_free(&kept);
        json_decref(files);
    }
    make(target);
    assert_int_equal(symlink(target, link), 0);
    assert_int_equal(overlay_records_unlink(link), -EINVAL);
    unlink(link);
    unlink(target);
    assert_int_equal(overlay_records_unlink(link), 0);
    assert_int_equal(overlay_records_unlink("fork-f-1-disk0.qcow2"), 0); /* none is here */
}

/* A guest that was moved here has overlays by the name of the fork that made them: they go with it, and none that a
 * child here has, which is not over yet */
static void test_moved(void **state)
{
    FF_AUTO_FREE char *file = in_base("fork-f-3-disk0.qcow2"), *there = in_base("fork-g-1-disk0.qcow2");
    FF_AUTO_FREE char *odd = xprintf("%s/../%s/fork-g-1-disk0.qcow2", base, strrchr(base, '/') + 1);
    FF_AUTO_FREE char *image = in_base("image.fork-f-disk0.qcow2");
    FF_AUTO_FREE char *dir = fork_dir("m", false, false, true), *other = fork_dir("g", true, false, false);
    json_t *files = json_pack("[s,s,s]", file, odd, image), *own = json_pack("[s]", there);
    json_t *s = rundir_read_state(dir), *starts = rundir_read_state(other);
    struct strv kept = {0};
    (void)state;

    json_object_set_new(s, "image", json_string("none"));
    assert_int_equal(rundir_write_state(dir, s), 0);
    json_object_set_new(starts, "children", json_array()); /* its agent is about to start it */
    assert_int_equal(rundir_write_state(other, starts), 0);
    assert_int_equal(overlay_records_make(other, 1, own, &why), 0);
    make(file);
    make(image);
    assert_int_equal(overlay_records_add(dir, 1, files, &why), 0);
    overlay_records_sweep(base, "m", &kept);
    assert_int_equal(access(file, F_OK), -1);
    assert_int_equal(access(there, F_OK), 0);
    assert_int_equal(access(image, F_OK), 0);
    assert_int_equal(kept.n, 2);
    assert_non_null(strstr(kept.v[0], odd));
    assert_non_null(strstr(kept.v[1], image));
    strv_free(&kept);
    unlink(there);
    unlink(image);
    rundir_remove(dir);
    rundir_remove(other);
    json_decref(files);
    json_decref(own);
    json_decref(s);
    json_decref(starts);
}

/* Somebody else has the lock: nothing is removed, and that is said where somebody asked */
static void test_sweep_locked(void **state)
{
    FF_AUTO_FREE char *file = in_base("fork-f-1-disk0.qcow2"), *dir = fork_dir("f", false, false, true);
    json_t *files = json_pack("[s]", file);
    struct strv kept = {0};
    int lock;
    (void)state;

    assert_int_equal(overlay_records_make(dir, 1, files, &why), 0);
    assert_int_equal(rundir_lock(base, 0, &lock, &why), 0);
    alarm(60); /* without a limit it waits for this process */
    overlay_records_sweep(base, "f", &kept);
    alarm(0);
    assert_int_equal(kept.n, 1);
    assert_non_null(strstr(kept.v[0], "lock"));
    assert_int_equal(access(file, F_OK), 0);
    rundir_unlock(lock);
    overlay_records_sweep(base, NULL, NULL);
    assert_int_equal(access(file, F_OK), -1);
    assert_int_equal(access(dir, F_OK), -1);
    strv_free(&kept);
    json_decref(files);
}

/* It has the folder open to lock it; who reads its names has it open with O_NONBLOCK */
static bool waits_for_lock(pid_t pid)
{
    FF_AUTO_FREE char *folder = xprintf("/proc/%d/fd", (int)pid);
    struct stat of, st;
    DIR *d = opendir(folder);
    struct dirent *e;
    bool waits = false;

    assert_int_equal(stat(base, &of), 0);
    while (d && (e = readdir(d))) {
        FF_AUTO_FREE char *info = xprintf("/proc/%d/fdinfo/%s", (int)pid, e->d_name);
        FILE *f = fstatat(dirfd(d), e->d_name, &st, 0) || st.st_ino != of.st_ino ||
                  st.st_dev != of.st_dev ? NULL : fopen(info, "re");
        unsigned flags;
        if (f && fscanf(f, "pos: %*d flags: %o", &flags) == 1)
            waits |= !(flags & O_NONBLOCK);
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return waits;
}

/* A fork is begun while another of its name, which has ended, is removed: it stays */
static void test_kill_beside(void **state)
{
    FF_AUTO_FREE char *old = fork_dir("f", false, false, false);
    int lock, status = -1, closed[2];
    char c;
    (void)state;

    assert_int_equal(rundir_lock(base, 0, &lock, &why), 0);
    assert_int_equal(pipe2(closed, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (!pid) {
        close(lock);
        (void)!write(closed[1], "c", 1);
        _exit(ps_end(base, "f", 0, true, 1000, false));
    }
    assert_int_equal(read(closed[0], &c, 1), 1);
    close(closed[0]);
    close(closed[1]);
    for (int i = 0; !waits_for_lock(pid) && i < 500; i++)
        poll(NULL, 0, 10);
    assert_true(waits_for_lock(pid)); /* it has found that nothing is alive */
    rundir_remove(old);
    FF_AUTO_FREE char *dir = fork_dir("f", true, true, false);
    rundir_unlock(lock);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    json_t *s = rundir_read_state(dir);
    assert_non_null(s);
    json_decref(s);
    rundir_remove(dir);
}

static void test_owner(void **state)
{
    FF_AUTO_FREE char *dir = fork_dir("f", true, true, false);
    FF_AUTO_FREE char *qmp = xprintf("unix:%s/1.qmp,server=on,wait=off", dir);
    FF_AUTO_FREE char *old = xprintf("unix:%s/1.parent.qmp,server=on", dir);
    char *argv[] = {"qemu", "-qmp", "stdio", "-qmp", old, "-qmp", qmp, "-incoming", "defer", NULL};
    struct overlay_owner o;
    (void)state;

    assert_true(overlay_records_owner(argv, getpid(), &o));
    assert_string_equal(o.dir, dir);
    assert_int_equal(o.number, 1);
    overlay_records_owner_free(&o);
    assert_false(overlay_records_owner(argv, getppid(), &o));
    argv[5] = "-chardev"; /* what is left is no child's */
    assert_false(overlay_records_owner(argv, getpid(), &o));
    argv[5] = "-qmp";
    assert_int_equal(chmod(dir, 0777), 0); /* anybody could say what to remove */
    assert_false(overlay_records_owner(argv, getpid(), &o));
    rundir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_use),       cmocka_unit_test(test_not_seen),
        cmocka_unit_test(test_other_users),
        cmocka_unit_test(test_create),       cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_broken),       cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_not_named),     cmocka_unit_test(test_moved),
        cmocka_unit_test(test_sweep_locked), cmocka_unit_test(test_kill_beside),
        cmocka_unit_test(test_owner)};

    return cmocka_run_group_tests(tests, make_base, remove_base);
}
