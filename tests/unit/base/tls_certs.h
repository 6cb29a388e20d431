/* Certificates for tests, made on the spot: a key pair and a PEM file "NAME.pem" (certificate, then
 * key) in `dir`. Not for: anything that lasts. Thread: any. */
#ifndef TESTS_UNIT_BASE_TLS_CERTS_H
#define TESTS_UNIT_BASE_TLS_CERTS_H

#include "tests/test.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

struct test_cert {
    X509 *x;
    EVP_PKEY *key;
};

static inline void cert_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    ASSERT_TRUE(e != NULL);
    ASSERT_EQ(X509_add_ext(x, e, -1), 1);
    X509_EXTENSION_free(e);
}

/* alt: "DNS:localhost,IP:127.0.0.1", NULL = a certificate authority. issuer NULL = self-signed.
 * Valid from_s to to_s seconds from now. */
static inline struct test_cert cert_make(const char *dir, const char *name, const char *alt,
                                         const struct test_cert *issuer, long from_s, long to_s)
{
    static long serial = 1;
    struct test_cert c = {X509_new(), EVP_EC_gen("P-256")};
    X509 *by = issuer ? issuer->x : c.x;
    ASSERT_TRUE(c.x && c.key);
    ASSERT_EQ(X509_set_version(c.x, 2), 1);
    ASSERT_EQ(ASN1_INTEGER_set(X509_get_serialNumber(c.x), serial++), 1);
    X509_gmtime_adj(X509_getm_notBefore(c.x), from_s);
    X509_gmtime_adj(X509_getm_notAfter(c.x), to_s);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(c.x), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    ASSERT_EQ(X509_set_issuer_name(c.x, X509_get_subject_name(by)), 1);
    ASSERT_EQ(X509_set_pubkey(c.x, c.key), 1);
    if (!alt) cert_extension(c.x, by, NID_basic_constraints, "critical,CA:TRUE");
    if (alt) cert_extension(c.x, by, NID_subject_alt_name, alt);
    ASSERT_TRUE(X509_sign(c.x, issuer ? issuer->key : c.key, EVP_sha256()) > 0);
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s.pem", dir, name);
    FILE *f = fopen(path, "w");
    ASSERT_TRUE(f != NULL);
    ASSERT_EQ(PEM_write_X509(f, c.x), 1);
    ASSERT_EQ(PEM_write_PrivateKey(f, c.key, NULL, NULL, 0, NULL, NULL), 1);
    ASSERT_EQ(fclose(f), 0);
    return c;
}

static inline void cert_free(struct test_cert *c)
{
    X509_free(c->x);
    EVP_PKEY_free(c->key);
}

#endif
