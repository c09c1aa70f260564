//! Finds the functions that a cuda.h declares, under the names that the driver exports.
//!
//! cuda.h declares most functions by a plain name and renames it by macro: `cuMemAlloc` is `cuMemAlloc_v2` in the
//! library, and `cuMemAllocAsync` is `cuMemAllocAsync_ptsz` where a program is built for per-thread streams. The old
//! plain functions are declared as well, for the driver's own use. So the names are: every one declared, and every
//! one that a macro leads to, with and without the suffix.

use std::collections::BTreeSet;

/// Every exported name that the header's text speaks of.
pub fn exported_names(header: &str) -> BTreeSet<String> {
    let text = without_comments(&header.replace("\\\n", " "));
    let mut names = BTreeSet::new();
    let mut code = String::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix('#') {
            Some(directive) => names.extend(renamed(directive)),
            None => {
                code.push_str(line);
                code.push('\n');
            }
        }
    }
    names.extend(declared(&code));
    names
}

/// The function's name without what tells its variants apart: `cuMemAlloc` for `cuMemAlloc_v2`.
pub fn base(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) && !version.is_empty() => base,
        _ => name,
    }
}

/// What `#define cuX …` makes of a name: `cuX_v2`, or `cuX` and `cuX_ptsz`.
fn renamed(directive: &str) -> Vec<String> {
    let Some(rest) = directive.trim_start().strip_prefix("define") else { return Vec::new() };
    let mut words =
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    if !words.next().is_some_and(is_function) {
        return Vec::new();
    }
    match (words.next(), words.next()) {
        (Some("__CUDA_API_PTSZ"), Some(name)) => vec![name.to_owned(), format!("{name}_ptsz")],
        (Some("__CUDA_API_PTDS"), Some(name)) => vec![name.to_owned(), format!("{name}_ptds")],
        (Some(name), None) if is_function(name) => vec![name.to_owned()],
        _ => Vec::new(),
    }
}

/// The names in `CUresult CUDAAPI cuX(…)`.
fn declared(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut previous = "";
    let mut rest = code;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let called = after.trim_start().starts_with('(');
        if called && is_function(word) && matches!(previous, "CUDAAPI" | "CUresult") {
            names.push(word.to_owned());
        }
        previous = word;
        rest = after;
    }
    names
}

/// `cu` and a capital: types begin with `CU`, and cuda's own lower-case names are not functions.
fn is_function(word: &str) -> bool {
    word.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let (before, comment) = rest.split_at(start);
        out.push_str(before);
        let end = match comment.as_bytes().get(1) {
            Some(b'*') => comment.find("*/").map_or(comment.len(), |at| at + 2),
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            _ => {
                out.push('/');
                1
            }
        };
        out.push(' ');
        rest = &comment[end..];
    }
    out.push_str(rest);
    out
}
