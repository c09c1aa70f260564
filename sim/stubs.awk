# driver-functions.tsv -> a stub for every function that is not in the file `defined`. A stub counts
# the call, can be made to fail, and otherwise does nothing.
BEGIN {
    FS = "\t"
    while ((getline line < defined) > 0) have[line] = 1
    print "#include \"sim.h\""
}
/^#/ || $1 in have { next }
{ printf "API CUresult %s(void);\nAPI CUresult %s(void) { ENTER(%s, NEED_INIT); return CUDA_SUCCESS; }\n", $1, $1, $1 }
