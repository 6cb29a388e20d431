/* Build-time generator: preset files in, a C table with their bytes out (segment_int.h declares
 * it). Usage: embed OUT.c FILE.json…  The files are listed by the build, in the order of their
 * names. */
#include <stdio.h>
#include <string.h>

static int embed_file(FILE *out, const char *path)
{
    const char *slash = strrchr(path, '/');
    FILE *in = fopen(path, "rb");
    if (!in) return -1;
    fprintf(out, "    {\"%s\",\n     \"", slash ? slash + 1 : path);
    for (int c; (c = getc(in)) != EOF;) {
        if (c == '\n')
            fputs("\\n\"\n     \"", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c >= 32 && c < 127)
            putc(c, out);
        else
            fprintf(out, "\\%03o", (unsigned)c); /* octal stops after three digits, hex would not */
    }
    fputs("\"},\n", out);
    int failed = ferror(in);
    fclose(in);
    return failed ? -1 : 0;
}

int main(int argc, char **argv)
{
    FILE *out = argc > 2 ? fopen(argv[1], "wb") : NULL;
    if (!out) return 1;
    fputs("/* Generated from etc/presets by embed.c. */\n#include \"segment/segment_int.h\"\n\n"
          "const struct seg_builtin seg_builtins[] = {\n",
          out);
    int failed = 0;
    for (int i = 2; i < argc && !failed; i++)
        failed = embed_file(out, argv[i]);
    fprintf(out, "};\nconst size_t seg_n_builtins = %d;\n", argc - 2);
    return fclose(out) != 0 || failed;
}
