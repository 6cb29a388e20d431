/* quant: every type against blocks and values written by make_golden.py, bit for bit. */
#include "fusor/model/quant.h"

#include "tests/test.h"

static const char *const names[] = {"F16",  "BF16", "Q4_0",   "Q4_1",   "Q5_0",
                                    "Q5_1", "Q8_0", "Q2_K",   "Q3_K",   "Q4_K",
                                    "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

static const struct quant_type *type_named(const char *name)
{
    for (uint32_t id = 0; id < 64; id++) {
        const struct quant_type *t = quant_type(id);
        if (t && strcmp(t->name, name) == 0) return t;
    }
    return NULL;
}

TEST(every_type_equals_the_reference_bit_for_bit)
{
    static uint8_t src[1 << 14];
    static float want[1 << 13], got[1 << 13];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char rel[64];
        uint32_t head[3];
        (void)snprintf(rel, sizeof(rel), "quant/%s.bin", names[i]);
        FILE *f = fopen(test_data(rel), "rb");
        ASSERT_TRUE(f != NULL);
        ASSERT_EQ(fread(head, sizeof(head), 1, f), 1);
        size_t bytes = (size_t)head[0] * head[1], n = (size_t)head[0] * head[2];
        ASSERT_TRUE(bytes > 0 && bytes <= sizeof(src) && n * sizeof(float) <= sizeof(want));
        ASSERT_EQ(fread(src, 1, bytes, f), bytes);
        ASSERT_EQ(fread(want, sizeof(float), n, f), n);
        (void)fclose(f);
        const struct quant_type *t = type_named(names[i]);
        ASSERT_TRUE(t != NULL);
        ASSERT_EQ(t->block, head[2]);
        ASSERT_EQ(t->bytes, head[1]);
        quant_to_f32(t, src, n, got);
        ASSERT_MEMEQ(got, want, n * sizeof(float));
    }
}

TEST(source_needs_no_alignment)
{
    uint8_t raw[1 + 8];
    float x = 1.5f, y = -2.25f, got[2];
    memcpy(raw + 1, &x, sizeof(x));
    memcpy(raw + 5, &y, sizeof(y));
    quant_to_f32(quant_type(QUANT_F32), raw + 1, 2, got);
    ASSERT_TRUE(got[0] == x && got[1] == y);
}

/* Every half: against the value computed from its fields. */
TEST(all_halves_convert_exactly)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        float got = codes_f16((uint16_t)h);
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        double mag = e == 31 ? (double)(m ? NAN : INFINITY)
                     : e     ? ldexp(1024 + m, e - 25)
                             : ldexp(m, -24);
        if (isnan(mag)) {
            ASSERT_TRUE(isnan(got));
        } else {
            ASSERT_TRUE((double)got == (h & 0x8000 ? -mag : mag));
            ASSERT_EQ(signbit(got) != 0, (h & 0x8000) != 0);
        }
    }
}

TEST(unknown_types_have_no_entry)
{
    ASSERT_TRUE(quant_type(4) == NULL);
    ASSERT_TRUE(quant_type(1000) == NULL);
}
