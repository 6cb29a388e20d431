/* tok_charsmap: the character map of a SentencePiece normalizer ("precompiled_charsmap").
 *
 * A double array (darts-clone) from the bytes of a text to an offset among zero-ended replacements.
 * Used as the tokenizers package uses it: a grapheme of up to five bytes that begins with an entry
 * becomes that entry's replacement, else each of its characters does, or stays. Thread: any after
 * open. */
#ifndef FUSOR_TEXT_TOK_CHARSMAP_H
#define FUSOR_TEXT_TOK_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

struct tok_charsmap;
/* From its base64 spelling. 0, -EBADMSG, -ENOMEM. */
int tok_charsmap_open(const char *text, size_t len, struct tok_charsmap **ret);
void tok_charsmap_close(struct tok_charsmap *m); /* accepts NULL */
/* The replacement of the shortest entry that s begins with; NULL: there is none. Borrowed. */
const char *tok_charsmap_find(const struct tok_charsmap *m, const uint8_t *s, size_t len);
/* Bytes of the file that it was made from, for fingerprints. */
const void *tok_charsmap_bytes(const struct tok_charsmap *m, size_t *ret_len);

#endif
