#include "base/buf.h"
#include "gateway/process/places.h"
#include "tests/test.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char base[64];

static void fresh(void)
{
    (void)snprintf(base, sizeof base, "/tmp/kvb-run-XXXXXX");
    ASSERT_TRUE(mkdtemp(base) != NULL);
    (void)setenv("XDG_RUNTIME_DIR", base, 1);
}

static void remove_all(struct buf *dir)
{
    (void)rmdir(buf_cstr(dir));
    (void)rmdir(base);
    buf_fini(dir);
}

TEST(private_folder_with_tight_mode)
{
    struct buf dir = BUF_INIT, own = BUF_INIT;
    struct err err;
    struct stat st;
    fresh();
    ASSERT_OK(gw_rundir_make(&dir, &err));
    ASSERT_OK(gw_rundir_private(buf_cstr(&dir), &own, &err));
    ASSERT_EQ(stat(buf_cstr(&own), &st), 0);
    ASSERT_EQ(st.st_mode & 0777, 0700);
    (void)rmdir(buf_cstr(&own));
    (void)chmod(buf_cstr(&dir), 0755);
    buf_fini(&dir);
    ASSERT_OK(gw_rundir_make(&dir, &err)); /* tightened again */
    ASSERT_EQ(stat(buf_cstr(&dir), &st), 0);
    ASSERT_EQ(st.st_mode & 0777, 0700);
    buf_fini(&own);
    remove_all(&dir);
}

TEST(a_link_is_refused)
{
    struct buf dir = BUF_INIT;
    struct err err;
    char path[128];
    fresh();
    (void)snprintf(path, sizeof path, "%s/kvblend", base);
    ASSERT_EQ(symlink("/tmp", path), 0);
    ASSERT_ERR(gw_rundir_make(&dir, &err), -EPERM);
    (void)unlink(path);
    remove_all(&dir);
}

TEST(admin_socket_taken_or_stale)
{
    struct buf dir = BUF_INIT, first = BUF_INIT, second = BUF_INIT;
    struct err err;
    fresh();
    ASSERT_OK(gw_rundir_make(&dir, &err));
    ASSERT_EQ(gw_rundir_admin(buf_cstr(&dir), &first), 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", buf_cstr(&first) + 5);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    ASSERT_EQ(listen(fd, 4), 0);
    ASSERT_EQ(gw_rundir_admin(buf_cstr(&dir), &second), 1);
    ASSERT_TRUE(strcmp(buf_cstr(&first), buf_cstr(&second)) != 0);
    (void)close(fd);
    buf_clear(&second);
    ASSERT_EQ(gw_rundir_admin(buf_cstr(&dir), &second), 0); /* nobody answers: stale, removed */
    ASSERT_STREQ(buf_cstr(&first), buf_cstr(&second));
    ASSERT_TRUE(access(a.sun_path, F_OK) != 0);
    buf_fini(&first);
    buf_fini(&second);
    remove_all(&dir);
}
