/* redis_sync: one command at a time to a Redis, waiting for the answer; for helper threads.
 *
 * For small things that are not worth the machinery of tiers/redis/redis.h. The URL may name one
 * server, a cluster or sentinels (redis_url.h), with TLS and login. The connection is made at the
 * first command and made anew after it broke; MOVED and ASK are followed, and after READONLY the
 * master is asked for again, so that keys of one hash slot need one connection. Nothing takes
 * longer than the time-out, but the resolver of names. Messages repeat no password.
 * Thread: one at a time. */
#ifndef BASE_REDIS_REDIS_SYNC_H
#define BASE_REDIS_REDIS_SYNC_H

#include "base/redis/redis_url.h"

struct redisReply;
struct redis_sync;
/* The URL is borrowed. -EINVAL with a sentence (TLS files), -ENOMEM. */
int redis_sync_create(const struct redis_url *u, unsigned timeout_ms, struct redis_sync **ret,
                      struct err *err);
/* 0 and a reply that is no error (freeReplyObject()); -EPERM the server refused it, in err; else
 * what broke: -ETIMEDOUT, -ECONNREFUSED, -ECONNRESET, -EIO, -EACCES (login), -ENOMEM, … */
int redis_sync_command(struct redis_sync *s, int argc, const char *const *argv,
                       struct redisReply **ret, struct err *err);
/* Connections made so far: a caller sees that the server may be another one, or empty. */
uint64_t redis_sync_n_connects(const struct redis_sync *s);
void redis_sync_destroy(struct redis_sync *s);

#endif
