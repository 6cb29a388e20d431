/* unicode: UTF-8, white space and NFC as the tokenizer wants them, on top of utf8proc.
 *
 * Bytes that are not UTF-8 count as one character each. Thread: any (pure functions). */
#ifndef FUSOR_TEXT_UNICODE_H
#define FUSOR_TEXT_UNICODE_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNI_BAD = 0x110000 }; /* what a byte that is not part of UTF-8 decodes to */

/* The character at s (n > 0 bytes left) and its length in bytes. */
uint32_t uni_decode(const uint8_t *s, size_t n, unsigned *ret_len);
/* Bytes of white space that the text begins, and ends with: White_Space, or that and U+001C–001F as
 * Python's str.isspace() has it. */
size_t uni_space_head(const void *text, size_t n, bool python);
size_t uni_space_tail(const void *text, size_t n, bool python);
/* A character in upper, lower or title case by the simple mapping (one for one), to ret; its length
 * in bytes. Whether Python's repr() shows it as it is. */
enum uni_case { UNI_UPPER, UNI_LOWER, UNI_TITLE };
unsigned uni_case(uint32_t cp, enum uni_case to, uint8_t ret[4]);
bool uni_printable(uint32_t cp);

unsigned uni_encode(uint32_t cp, uint8_t ret[4]); /* UTF-8 of a character; its length in bytes */
/* What encoders' tokenizers ask of a character. CONTROL: Cc (but tab, line
 * feed and carriage return, which are SPACE), Cf, Co. */
enum uni_kind { UNI_OTHER, UNI_SPACE, UNI_CONTROL, UNI_MARK /* Mn */, UNI_PUNCTUATION };
enum uni_kind uni_kind(uint32_t cp);
unsigned uni_lower(uint32_t cp, uint32_t ret[2]); /* full mapping, without context; how many */
enum { UNI_PARTS = 4 };
unsigned uni_decompose(uint32_t cp, uint32_t ret[UNI_PARTS]); /* canonically, to the end */
size_t uni_grapheme(const uint8_t *s, size_t n); /* bytes of the extended cluster at s, n > 0 */
uint8_t uni_order(uint32_t cp);                  /* canonical combining class */

/* NFC. uni_stable() bytes from the start need no change (the cut is before a starter that nothing
 * follows up on). uni_unstable_len() is the length of the stretch at s, at least one character,
 * that has to be normalised as a whole; never more than UNI_NFC_MAX characters, which only a heap
 * of marks that is no text can reach (Unicode's stream-safe form allows 30). uni_add_nfc() appends
 * such a stretch, normalised; one that is not UTF-8 is appended as it is. */
enum { UNI_NFC_MAX = 256 };
size_t uni_stable(const uint8_t *s, size_t n);
size_t uni_unstable_len(const uint8_t *s, size_t n);
int uni_add_nfc(struct buf *b, const uint8_t *s, size_t len);

#endif
