//! `CUWARDEN_DRIFT`: what makes growing memory suspicious.

/// The rules' numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// From the first context to the first comparison, in seconds: a program is being set up then.
    pub after_s: f64,
    /// Between comparisons, in seconds.
    pub every_s: f64,
    /// Comparisons in a row that must have grown.
    pub times: u32,
    /// By how much each must be above the one before.
    pub percent: f64,
    /// From the first context to the first look back by the slow rule, in seconds.
    pub slow_after_s: f64,
    /// What at its present pace fills the device within this time is suspicious, in seconds.
    pub horizon_s: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            after_s: 30.0,
            every_s: 5.0,
            times: 3,
            percent: 15.0,
            slow_after_s: 600.0,
            horizon_s: 7.0 * 86_400.0,
        }
    }
}

/// What may stand in `CUWARDEN_DRIFT`.
pub const ALLOWED: &str = "0 to look for nothing, or any of after, every, slow-after, horizon (a time such as 500ms, 30s, \
     10m, 2h or 7d), times (1 to 100) and percent (above 0), for example after=30s,every=5s,times=3,percent=15";

/// `None` where nobody is to look. An error is the part that is wrong and why.
pub fn parse(text: &str) -> Result<Option<Settings>, (String, &'static str)> {
    if text == "0" {
        return Ok(None);
    }
    let mut settings = Settings::default();
    let mut seen: Vec<&str> = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let wrong = |reason| (part.to_owned(), reason);
        let (name, value) = part.split_once('=').ok_or(wrong("no NAME=VALUE"))?;
        if seen.contains(&name) {
            return Err(wrong("named twice"));
        }
        seen.push(name);
        let time = || seconds(value).ok_or(wrong("not a time"));
        match name {
            "after" => settings.after_s = time()?,
            "every" => settings.every_s = Some(time()?).filter(|s| *s >= 0.05).ok_or(wrong("under 50ms"))?,
            "slow-after" => settings.slow_after_s = time()?,
            "horizon" => settings.horizon_s = time()?,
            "times" => {
                let times = digits(value).filter(|times| (1..=100).contains(times));
                settings.times = times.ok_or(wrong("not a number from 1 to 100"))?;
            }
            "percent" => {
                let percent = number(value).filter(|percent| *percent > 0.0);
                settings.percent = percent.ok_or(wrong("not a number above 0"))?;
            }
            _ => return Err(wrong("not the name of a setting")),
        }
    }
    Ok(Some(settings))
}

/// `500ms`, `30s`, `10m`, `2h`, `7d`.
pub fn seconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (value, unit) = text.split_at_checked(unit)?;
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Some(number(value)? * factor)
}

/// Digits, with a fraction perhaps: no sign, no exponent, nothing endless.
fn number(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let places = u32::try_from(fraction.len()).ok()?;
    Some(f64::from(digits(whole)?) + f64::from(digits(fraction)?) / f64::from(10u32.checked_pow(places)?))
}

fn digits(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_and_what_is_not() {
        assert_eq!(parse(""), Ok(Some(Settings::default())));
        assert_eq!(parse("0"), Ok(None));
        let all = "after=1m,every=500ms,times=2,percent=7.5,slow-after=2h,horizon=1.5d";
        let expected = Settings {
            after_s: 60.0,
            every_s: 0.5,
            times: 2,
            percent: 7.5,
            slow_after_s: 7_200.0,
            horizon_s: 129_600.0,
        };
        assert_eq!(parse(all), Ok(Some(expected)));
        assert_eq!(parse("times=2"), Ok(Some(Settings { times: 2, ..Settings::default() })));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("1", "1"),
            ("after", "after"),
            ("after=30", "after=30"),
            ("after=-1s", "after=-1s"),
            ("after=1e3s", "after=1e3s"),
            ("every=0s", "every=0s"),
            ("every=5s,times=0", "times=0"),
            ("times=101", "times=101"),
            ("percent=0", "percent=0"),
            ("percent=inf", "percent=inf"),
            ("percent=.5", "percent=.5"),
            ("horizon=7w", "horizon=7w"),
            ("horizon=99999999999d", "horizon=99999999999d"),
            ("after=1s,after=2s", "after=2s"),
            ("after=1s,", ""),
            ("later=1s", "later=1s"),
        ] {
            assert_eq!(parse(text).map_err(|(part, _)| part), Err(part.to_owned()), "{text}");
        }
    }
}
