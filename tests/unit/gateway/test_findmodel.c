#include "base/buf.h"
#include "gateway/process/places.h"
#include "tests/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(first_by_name_or_a_sentence)
{
    char dir[] = "/tmp/kvb-models-XXXXXX", path[128], folder[64];
    struct buf found = BUF_INIT;
    struct err err = {0};
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    (void)setenv("KVBLEND_MODELS", dir, 1);
    ASSERT_ERR(gw_find_model(&found, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "kvblend pull") != NULL);
    (void)snprintf(folder, sizeof folder, "%s/b-folder", dir);
    ASSERT_EQ(mkdir(folder, 0700), 0);
    ASSERT_ERR(gw_find_model(&found, &err), -ENOENT); /* no config.json: no model */
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    (void)close(open(path, O_CREAT | O_WRONLY, 0600));
    ASSERT_OK(gw_find_model(&found, &err));
    ASSERT_STREQ(buf_cstr(&found), folder);
    (void)unlink(path);
    (void)rmdir(folder);
    (void)snprintf(path, sizeof path, "%s/a.gguf", dir);
    (void)close(open(path, O_CREAT | O_WRONLY, 0600));
    buf_clear(&found);
    ASSERT_OK(gw_find_model(&found, &err));
    ASSERT_STREQ(buf_cstr(&found), path);
    (void)unlink(path);
    (void)rmdir(dir);
    buf_fini(&found);
}
