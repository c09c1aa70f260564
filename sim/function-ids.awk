# driver-functions.tsv -> the numbers under which calls are counted, and their names.
BEGIN { n = 0 }
/^#/ { next }
{ name[n++] = $1 }
END {
    name[n++] = "slot2"
    print "enum function_id {"
    for (i = 0; i < n; i++) printf "    FN_%s,\n", name[i]
    print "    FN_COUNT"
    print "};"
    print "__attribute__((unused)) static const char *const function_names[] = {"
    for (i = 0; i < n; i++) printf "    \"%s\",\n", name[i]
    print "};"
}
