//! Which functions of the driver must have a hook or a written reason for having none.
//!
//! The rule reads the function's name, word by word, and is wide on purpose: a new function that the rule takes for
//! a way to get memory costs one line in not-hooked.tsv; one that it misses is memory that nobody counts.

/// A function counts when a word of its name begins with one of these.
const STEMS: &[(&str, &str)] = &[
    (
        "memory and objects come and go",
        "Alloc Free Creat Destroy Releas Retain Reserv Acquire Clone Trim Pool Reset",
    ),
    ("pages come and go", "Discard Prefetch Decompress"),
    (
        "memory becomes visible, here or elsewhere",
        "Map Unmap Bind Unbind Attach Detach Import Export Open Close",
    ),
    ("memory of others becomes known", "Regist Unregist Deregist"),
    ("code brings its data with it", "Load Unload"),
    ("a context is memory, and everything in it goes with it", "Ctx"),
    (
        "graphs allocate when they run; what is captured becomes a graph",
        "Instantiat Upload Launch Node Captur Recaptur",
    ),
    ("a whole process is put away and brought back", "Checkpoint Restor"),
];

/// Whether the function (without `_v2`, `_ptsz` and the like) may change who holds how much device memory.
pub fn concerns_memory(base: &str) -> bool {
    let words = words(base.strip_prefix("cu").unwrap_or(base));
    let mut stems = STEMS.iter().flat_map(|(_why, stems)| stems.split_whitespace());
    stems.any(|stem| words.iter().any(|word| word.starts_with(stem)))
}

/// Whether a function of NVML may tell how much memory there is, or who has it.
pub fn tells_of_memory(name: &str) -> bool {
    let words = words(name.strip_prefix("nvml").unwrap_or(name));
    let stems = ["Mem", "Process", "Accounting", "Fb"];
    words.contains(&"Get") && stems.iter().any(|stem| words.iter().any(|word| word.starts_with(stem)))
}

/// `GraphAddMemAllocNode` is Graph, Add, Mem, Alloc, Node. A run of capitals belongs to the word that it begins
/// (`GLCtxCreate` is GL, Ctx, Create).
fn words(name: &str) -> Vec<&str> {
    let bytes = name.as_bytes();
    let begins = |at: usize| {
        bytes[at].is_ascii_uppercase()
            && (!bytes[at - 1].is_ascii_uppercase() || bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase))
    };
    let mut words = Vec::new();
    let mut start = 0;
    for at in 1..bytes.len() {
        if begins(at) {
            words.push(&name[start..at]);
            start = at;
        }
    }
    words.push(&name[start..]);
    words
}

#[test]
fn names_are_split_into_words() {
    assert_eq!(words("GraphAddMemAllocNode"), ["Graph", "Add", "Mem", "Alloc", "Node"]);
    assert_eq!(words("GLCtxCreate"), ["GL", "Ctx", "Create"]);
    assert_eq!(words("Array3DCreate"), ["Array3", "D", "Create"]);
}
