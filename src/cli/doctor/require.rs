//! `NVIDIA_REQUIRE_CUDA`: what an image asks of the driver. The container toolkit reads it when a container starts; other
//! ways to give it a card do not.

use super::model::{Line, Verdict};
use crate::diagnose::machine::Machine;
use crate::policy::versions::CudaVersion;
use crate::policy::versions::release::Release;

const VARIABLE: &str = "NVIDIA_REQUIRE_CUDA";

/// What the driver has.
pub struct Driver<'a> {
    pub cuda: Option<CudaVersion>,
    pub release: Option<&'a Release>,
}

/// Says whether the driver has what the image asks for.
pub fn judge(machine: &Machine, driver: &Driver) -> Option<Line> {
    let value = machine.variable(VARIABLE).filter(|value| !value.trim().is_empty())?;
    let has =
        [driver.cuda.map(|cuda| format!("CUDA {cuda}")), driver.release.map(|one| format!("driver {one}"))];
    let has: Vec<String> = has.into_iter().flatten().collect();
    let shown = if has.is_empty() { "the driver".to_owned() } else { has.join(", ") };
    Some(match is_kept(&value, driver) {
        Some(true) => {
            Line::ok("require_cuda", format!("{shown} has what the image asks for: {VARIABLE}={value}"))
        }
        None => {
            Line::ok("require_cuda", format!("{VARIABLE}={value} asks for more than can be told from here"))
        }
        Some(false) => {
            let off = machine
                .variable("NVIDIA_DISABLE_REQUIRE")
                .is_some_and(|set| matches!(set.as_str(), "1" | "true"));
            let off = if off { "; NVIDIA_DISABLE_REQUIRE has switched the check off" } else { "" };
            Line::new(
                "require_cuda",
                Verdict::Warning,
                format!("{shown} has not what the image asks for: {VARIABLE}={value}{off}"),
                "Update the host's driver, or use an image for an older CUDA.",
            )
        }
    })
}

/// Spaces part alternatives, commas what must hold together. `None`: it depends on what is not known here.
fn is_kept(value: &str, driver: &Driver) -> Option<bool> {
    let alternatives: Vec<Option<bool>> = value
        .split_whitespace()
        .map(|all| {
            let parts: Vec<Option<bool>> = all.split(',').map(|one| holds(one, driver)).collect();
            one_of(&parts, false).or_else(|| parts.iter().all(|part| *part == Some(true)).then_some(true))
        })
        .collect();
    one_of(&alternatives, true)
        .or_else(|| alternatives.iter().all(|part| *part == Some(false)).then_some(false))
}

fn one_of(parts: &[Option<bool>], wanted: bool) -> Option<bool> {
    parts.contains(&Some(wanted)).then_some(wanted)
}

fn holds(condition: &str, driver: &Driver) -> Option<bool> {
    let at = condition.find(['<', '>', '=', '!'])?;
    let (name, rest) = condition.split_at(at);
    let length = rest.find(|c: char| !matches!(c, '<' | '>' | '=' | '!'))?;
    let (sign, wanted) = rest.split_at(length);
    let order = match name {
        "cuda" => driver.cuda?.cmp(&CudaVersion::parse(wanted)?),
        "driver" => driver.release?.cmp(&Release::parse(wanted)?),
        // Brands and architectures are the card's.
        _ => return None,
    };
    Some(match sign {
        ">=" => order.is_ge(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        "<" => order.is_lt(),
        "=" | "==" => order.is_eq(),
        "!=" => order.is_ne(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_and_what_is_not_known() {
        let release = Release::parse("535.183.01").unwrap();
        let driver = Driver { cuda: Some(CudaVersion::new(12, 2)), release: Some(&release) };
        for (value, kept) in [
            ("cuda>=12.2", Some(true)),
            ("cuda>=12.4", Some(false)),
            ("cuda>=12.4 driver>=535,driver<536", Some(true)),
            ("cuda>=12.4 driver>=470,driver<471 driver>=525,driver<526", Some(false)),
            ("cuda>=12.4 brand=tesla,driver>=535,driver<536", None),
            ("cuda>=12.4 brand=tesla,driver>=470,driver<471", Some(false)),
            ("cuda=12.2", Some(true)),
            ("cuda!=12.2", Some(false)),
            ("cuda<=12.2,cuda>11.0", Some(true)),
            ("cuda>=9", None),
            ("cuda", None),
            ("cuda>=", None),
            ("=<>", None),
        ] {
            assert_eq!(is_kept(value, &driver), kept, "{value}");
        }
        assert_eq!(is_kept("cuda>=12.2", &Driver { cuda: None, release: None }), None);
    }
}
