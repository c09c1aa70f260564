# driver-functions.tsv -> the table of cuGetProcAddress. Types do not matter to it, so it declares
# every function in the same way and includes nothing that would say otherwise.
BEGIN { FS = "\t"; n = 0 }
/^#/ { next }
{ name[n] = $1; symbol[n] = $2; version[n] = $3; flags[n] = $4; n++ }
END {
    for (i = 0; i < n; i++) printf "extern void %s(void);\n", name[i]
    print "struct lookup_row { const char *symbol; int version, flags; void *address; };"
    print "extern const struct lookup_row lookup_rows[];\nextern const int lookup_row_count;"
    print "const struct lookup_row lookup_rows[] = {"
    for (i = 0; i < n; i++) printf "    {\"%s\", %s, %s, (void *)%s},\n", symbol[i], version[i], flags[i], name[i]
    print "};"
    print "const int lookup_row_count = sizeof lookup_rows / sizeof *lookup_rows;"
}
