//! The page of `cuwarden report --format html` in a real browser.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;
mod common;

use std::path::Path;
use std::process::Command;

use cli_support::Temp;
use common::clients;
use common::process::run;
use cuwarden::growth::{Growth, GrowthClass};
use cuwarden::report::html::html;
use cuwarden::report::judged::{Judge, Judged};
use cuwarden::report::model::{Device, Frame, Leak, Report, Termination};
use cuwarden::report::pattern::Pattern;
use serde_json::Value;

/// Would be seen if any of it were taken for markup: the title of the page would be another one.
const EVIL: &str = "</script><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">\
    <svg onload=document.title='ran'>'\"`${document.title='ran'}<!--";

fn frame(function: &str) -> Frame {
    Frame {
        module: Some("/opt/app/trainer".to_owned()),
        function: Some(function.to_owned()),
        ..Frame::default()
    }
}

fn leak(bytes: u64, count: u64, functions: &[&str]) -> Leak {
    let stack = functions.iter().map(|name| frame(name)).collect();
    Leak { api: "cudaMalloc".to_owned(), bytes, count, oldest_age_s: 1.5, stack, ..Leak::default() }
}

/// 12 KiB by `load`, 4 KiB by a function with a bad name, 2 KiB that are known, and 120 small ones.
fn sample() -> Vec<Judged> {
    let mut leaks = vec![
        leak(12 << 10, 3, &["load", "main"]),
        Leak {
            growth: Some(Growth { class: GrowthClass::Growing, bytes_a_minute: 2048.0 }),
            timeline: vec![0, 1024, 3072],
            ..leak(4 << 10, 40, &[EVIL, "main"])
        },
        leak(2 << 10, 1, &["known", "main"]),
    ];
    let names: Vec<String> = (0..120).map(|number| format!("small_{number:03}")).collect();
    leaks.extend(names.iter().map(|name| leak(16, 1, &[name, "main"])));
    let report = Report {
        exe: "/opt/app/trainer".to_owned(),
        cmdline: vec!["trainer".to_owned(), EVIL.to_owned()],
        labels: [(EVIL.to_owned(), EVIL.to_owned())].into(),
        pid: 42,
        termination: Termination::Exit,
        devices: vec![Device { name: EVIL.to_owned(), ..Device::default() }],
        leaks,
        timeline_s: vec![1.0, 2.0, 3.0],
        lived_s: 5.0,
        ..Report::default()
    };
    let known = Pattern::parse("function:known").unwrap();
    vec![Judge::new(vec![known], Vec::new()).judge(report)]
}

/// The page's DOM after its scripts have run, and what the browser's console has.
fn shown(temp: &Temp, page: &Path, options: &[&str]) -> (String, Vec<String>) {
    let browser = clients::browser();
    let mut command = Command::new(&browser.program);
    command
        .env("LD_LIBRARY_PATH", &browser.lib)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
        ])
        // Whatever the page would fetch does not come.
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", temp.join("profile").display()))
        .args(options)
        .arg(format!("file://{}", page.display()));
    let out = run(&mut command).succeeded();
    let said = out.stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    (out.stdout, said)
}

/// Runs a script in the page and answers what it returns. The page's policy would not let it: it is taken out.
fn asked(temp: &Temp, script: &str, options: &[&str]) -> Value {
    let page = html(&sample()).unwrap();
    let (before, rest) = page.split_once("<meta http-equiv").unwrap();
    let (_, after) = rest.split_once(">\n").unwrap();
    let driver = format!(
        "<script>const rows = () => [...document.querySelectorAll('#stacks > tr')].filter(row => !row.hidden)\
           .map(row => [...row.children].map(cell => cell.textContent));\
         const click = (selector, n) => document.querySelectorAll(selector)[n]\
           .dispatchEvent(new MouseEvent('click', {{bubbles: true}}));\
         const answer = (() => {{ {script} }})();\
         const bytes = new TextEncoder().encode(JSON.stringify(answer));\
         document.body.append('ANSWER:' + [...bytes].map(b => b.toString(16).padStart(2, '0')).join('') + ':');\
         </script></body>"
    );
    let page = temp.write("driven.html", format!("{before}{after}").replace("</body>", &driver));
    let (dom, said) = shown(temp, &page, options);
    assert_eq!(said, [] as [&str; 0]);
    let hex = dom.split("ANSWER:").last().unwrap().split(':').next().unwrap();
    let digits: Vec<char> = hex.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    serde_json::from_slice(&digits.chunks(2).map(byte).collect::<Vec<u8>>()).unwrap()
}

#[test]
fn the_page_shows_everything_and_runs_nothing_foreign() {
    let temp = Temp::new("browser-page");
    let page = temp.write("page.html", html(&sample()).unwrap());
    let (dom, said) = shown(&temp, &page, &[]);
    // Nothing was refused, so the page's own script and style count as such.
    assert_eq!(said, [] as [&str; 0]);
    assert!(dom.contains(
        "<title>trainer: Leak: 17.9 KiB not freed, in 163 allocations from 122 call stacks; 4.00 KiB of it growing, 2.00 KiB a minute</title>"
    ));
    for words in ["12.0 KiB", "load", "function:known", "application", "<rect", "Show 22 more of 122"] {
        assert!(dom.contains(words), "{words:?} is missing");
    }
    let foreign = dom.replace("onerror=", "onerror\0").matches("<img").count();
    assert_eq!(foreign, 0, "a name became an element");

    // Should markup come in all the same, it does not run: the policy does not know it.
    let hole = html(&sample()).unwrap().replace(
        "<h1>",
        "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\"><h1 onclick=\"\">",
    );
    let (dom, said) = shown(&temp, &temp.write("hole.html", hole), &[]);
    assert!(!dom.contains("<title>ran"), "a foreign script ran");
    assert!(said.iter().any(|line| line.contains("Content Security Policy")), "{said:?}");
}

#[test]
fn the_table_sorts_filters_and_opens() {
    let temp = Temp::new("browser-table");
    let answer = asked(
        &temp,
        "const out = {};
         out.first = rows()[0].slice(0, 7);
         out.count = rows().length;
         click('#more', 0);
         out.all = rows().length;
         click('#head button', 1); out.byCount = rows()[0][0];
         click('#head button', 1); out.rising = rows()[0][1];
         click('#head button', 3); out.byGrowth = rows()[0].slice(0, 4);
         click('#head button', 6); out.byName = rows().map(row => row[6]);
         out.sorted = [...document.querySelectorAll('#head th')].map(cell => cell.getAttribute('aria-sort'))[6];
         const filter = document.getElementById('filter');
         const set = text => { filter.value = text; filter.dispatchEvent(new Event('input')); };
         set('SMALL_01'); out.filtered = rows().length;
         out.sum = document.getElementById('sum').textContent;
         set(''); click('#states input', 1);
         out.withKnown = rows().filter(row => row.includes('function:known')).map(row => row[6]);
         set('load'); click('#stacks button', 0);
         out.opened = rows()[1][0];
         set('growing'); click('#stacks button', 0);
         const line = document.querySelector('svg.course');
         out.line = [line.getAttribute('aria-label'), line.firstChild.getAttribute('points')];
         return out;",
        &[],
    );
    assert_eq!(
        answer["first"],
        serde_json::json!(["12.0 KiB", "3", "1.5 s", "", "application", "cudaMalloc", "load"])
    );
    assert_eq!((&answer["count"], &answer["all"]), (&100.into(), &122.into()));
    assert_eq!(
        answer["byGrowth"],
        serde_json::json!(["4.00 KiB", "40", "1.5 s", "growing, 2.00 KiB a minute"])
    );
    // From the first sample to the end, 560 wide and 90 high.
    let told = "live bytes from 1.0 s to 5.0 s after the start, highest 4.00 KiB";
    assert_eq!(answer["line"], serde_json::json!([told, "0.0,90.0 140.0,68.5 280.0,25.5 560.0,4.0"]));
    assert_eq!((&answer["byCount"], &answer["rising"]), (&"4.00 KiB".into(), &"1".into()));
    let names: Vec<&str> =
        answer["byName"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.is_sorted() && names.len() == 122 && names.contains(&EVIL), "{names:?}");
    assert_eq!(answer["sorted"], "ascending");
    assert_eq!((&answer["filtered"], &answer["sum"]), (&10.into(), &"160 bytes from 10 call stacks".into()));
    assert_eq!(answer["withKnown"], serde_json::json!(["known"]));
    let opened = answer["opened"].as_str().unwrap();
    assert!(
        opened.contains("load") && opened.contains("main") && opened.contains("/opt/app/trainer"),
        "{opened}"
    );
}

#[test]
fn the_flame_graph_zooms() {
    let temp = Temp::new("browser-flame");
    let answer = asked(
        &temp,
        "const boxes = () => Object.fromEntries([...document.querySelectorAll('#flame g')].map(group =>
           [group.querySelector('title').textContent, +group.querySelector('rect').getAttribute('width')]));
         const out = {before: boxes()};
         const groups = [...document.querySelectorAll('#flame g')];
         groups.find(group => group.textContent.startsWith('load')).dispatchEvent(new MouseEvent('click', {bubbles: true}));
         out.after = boxes();
         document.querySelector('#flame g').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
         out.again = boxes();
         return out;",
        &[],
    );
    let width = |when: &str, name: &str| {
        let boxes = answer[when].as_object().unwrap();
        let found = boxes.iter().find(|(title, _)| title.starts_with(name));
        found.unwrap_or_else(|| panic!("{name} is not in {boxes:?}")).1.as_f64().unwrap()
    };
    let all = width("before", "all: 17.9 KiB in 163 allocations, 100.0 %");
    assert!((width("before", "load: 12.0 KiB in 3 allocations, 67.1 %") / all - 0.671).abs() < 0.001);
    assert!(width("before", EVIL) > 0.0);
    assert_eq!(width("after", "load:"), all);
    assert_eq!(width("after", "main:"), all);
    assert!(answer["after"].as_object().unwrap().keys().all(|title| !title.starts_with("small")));
    assert_eq!(answer["again"], answer["before"]);
}

#[test]
fn light_and_dark() {
    let temp = Temp::new("browser-colours");
    let script = "const style = getComputedStyle(document.body);\
                  return [matchMedia('(prefers-color-scheme: dark)').matches, style.backgroundColor, style.color];";
    let [light, dark] = ["1", "0"]
        .map(|scheme| asked(&temp, script, &[&format!("--blink-settings=preferredColorScheme={scheme}")]));
    assert_eq!(light, serde_json::json!([false, "rgb(255, 255, 255)", "rgb(29, 31, 35)"]));
    assert_eq!(dark, serde_json::json!([true, "rgb(21, 23, 26)", "rgb(228, 231, 235)"]));
}
