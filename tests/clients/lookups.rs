//! Compares the look-ups of one process without the shim and of one under it.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::common::cc;
use crate::common::process::{Finished, run};
use crate::common::sim::Sim;

/// One look-up and its answer, as tests/clients/c/lookups.c prints it.
#[derive(PartialEq)]
struct Answer<'a> {
    /// Symbol, version, flags and the function that was asked.
    question: &'a str,
    code: &'a str,
    status: &'a str,
    /// The exported variants that the address is.
    names: &'a str,
    module: &'a str,
    offset: &'a str,
}

/// Fails unless each answer under the shim is the driver's own, or the hook for exactly the variant that the driver
/// answered with.
#[track_caller]
pub fn assert_identity(sim: &Sim, names: &BTreeSet<String>, triples: &[(String, u32, u32)]) {
    let program = cc::program("tests/clients/c/lookups.c", &[]);
    let list = sim.temp.join("names");
    let mut text = String::new();
    names.iter().for_each(|name| text.extend([name, "\n"]));
    std::fs::write(&list, text).expect("the folder is ours");
    let questions = sim.temp.join("triples");
    let mut text = String::new();
    triples.iter().for_each(|(symbol, version, flags)| {
        writeln!(text, "{symbol} {version} {flags}").expect("a string takes all");
    });
    std::fs::write(&questions, text).expect("the folder is ours");

    let bare = run(sim.bare(&program).args([&list, &questions])).succeeded();
    let shimmed = run(sim.shimmed(&program).args([&list, &questions])).succeeded();
    let (bare, shimmed) = (answers(&bare), answers(&shimmed));
    assert!(bare.len() >= triples.len() * 2, "{} answers to {} questions", bare.len(), triples.len());
    assert_eq!(bare.len(), shimmed.len(), "look-ups answered");

    let hooked: BTreeSet<&str> = crate::common::hooked::names().collect();
    let mut wrong = Vec::new();
    for (bare, shimmed) in bare.iter().zip(&shimmed) {
        let expected = match bare.names.split(',').any(|name| hooked.contains(name)) {
            true => Answer { module: "libcuwarden.so", ..*bare },
            false => Answer { ..*bare },
        };
        if *shimmed != expected {
            wrong.push(format!("{}: {}, not {}", bare.question, told(shimmed), told(&expected)));
        }
    }
    let first: Vec<&String> = wrong.iter().take(40).collect();
    assert!(
        wrong.is_empty(),
        "{} of {} answers are wrong, the first of them: {first:#?}",
        wrong.len(),
        bare.len()
    );
    // Otherwise two empty answers would agree as well.
    let hooks = shimmed.iter().filter(|answer| answer.module == "libcuwarden.so").count();
    assert!(hooks > 20, "only {hooks} look-ups gave a hook");
}

fn answers(out: &Finished) -> Vec<Answer<'_>> {
    let parse = |line| {
        let fields: Vec<&str> = str::split(line, '\t').collect();
        let [question, code, status, names, module, offset] = fields[..] else { panic!("fields: {line:?}") };
        Answer { question, code, status, names, module, offset }
    };
    out.stdout.lines().map(parse).collect()
}

fn told(answer: &Answer) -> String {
    let Answer { code, status, names, module, offset, .. } = answer;
    format!("code {code} status {status} {names} in {module} at {offset}")
}
