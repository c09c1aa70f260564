//! From evidence to causes: a table, one row a cause, most likely first.
//!
//! A row answers only where its evidence is there. What reports say about each, see the issue numbers in the rows.

mod devices;
mod libraries;
mod modes;

use super::chain::{Chain, Device};
use super::image::Image;
use super::machine::Machine;
use crate::policy::ordinal::{self, Card, Place};
use serde::Serialize;

/// What failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The function, as events name it.
    pub api: String,
    /// CUDA's code; 0 = nothing has failed yet, somebody asks beforehand.
    pub code: i32,
    /// The device that was asked for, by CUDA's ordinal.
    pub device: Option<i32>,
}

/// What the process knows besides.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// cuDriverGetVersion, as 12020.
    pub driver_version: Option<u32>,
    /// Versions of the runtimes in the process, as 12090.
    pub runtimes: Vec<u32>,
    /// What was to be loaded, where a module could not be.
    pub image: Option<Image>,
    /// The device's compute capability, as 90.
    pub architecture: Option<u32>,
}

/// All that there is to conclude from.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// What failed.
    pub failure: &'a Failure,
    /// What the process knows.
    pub known: &'a Known,
    /// What the machine says.
    pub machine: &'a Machine,
    /// What NVML says; `None`: there is no NVML to ask.
    pub chain: Option<&'a Chain>,
}

/// Why it may have failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Its name; fixed.
    pub id: &'static str,
    /// What was read on this machine that shows it.
    pub evidence: String,
    /// What to do.
    pub action: String,
}

/// How well the evidence explains the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Something to know beside better explanations.
    Aside,
    /// It fits, as other things would.
    Possible,
    /// It is often this.
    Likely,
    /// It cannot work like this.
    Certain,
}

struct Found {
    weight: Weight,
    evidence: String,
    action: String,
}

struct Row {
    id: &'static str,
    look: fn(Case) -> Option<Found>,
}

const TABLES: [&[Row]; 3] = [libraries::ROWS, devices::ROWS, modes::ROWS];

/// The causes that the evidence shows, most likely first. Never empty.
pub fn explain(case: Case) -> Vec<Cause> {
    let found = weighed(case);
    let explained = found.iter().any(|(weight, _)| *weight > Weight::Aside);
    let mut causes: Vec<Cause> = found.into_iter().map(|(_, cause)| cause).collect();
    if !explained {
        causes.insert(0, unknown(case));
    }
    causes
}

/// The same with how well each explains it, and empty where nothing does.
pub fn weighed(case: Case) -> Vec<(Weight, Cause)> {
    let mut found: Vec<(Weight, Cause)> = TABLES
        .iter()
        .flat_map(|rows| rows.iter())
        .filter_map(|row| {
            let Found { weight, evidence, action } = (row.look)(case)?;
            Some((weight, Cause { id: row.id, evidence, action }))
        })
        .collect();
    heaviest_first(&mut found);
    found
}

/// Rows of one weight stay in the order of the tables. There are a few, and the standard library's sort that keeps an order
/// takes 5 KB of code.
fn heaviest_first(found: &mut [(Weight, Cause)]) {
    for end in 1..found.len() {
        for at in (1..=end).rev() {
            let is_in_order = found.get(at - 1).zip(found.get(at)).is_none_or(|(a, b)| a.0 >= b.0);
            if is_in_order {
                break;
            }
            found.swap(at - 1, at);
        }
    }
}

fn unknown(case: Case) -> Cause {
    let mut evidence = format!("nothing that was looked at explains code {}", case.failure.code);
    if let Some(call) = case.chain.and_then(Chain::last_failure) {
        evidence += &format!("; NVML's {}({}) gave {} ({})", call.call, call.args, call.name, call.code);
    }
    if case.chain.is_some_and(|chain| chain.timed_out) {
        evidence += "; NVML did not answer in time, which points to the driver or the card";
    }
    Cause {
        id: "unknown",
        evidence,
        action:
            "Look into the kernel's log for NVRM and Xid lines, and run cuwarden doctor here and on the host."
                .to_owned(),
    }
}

impl<'a> Case<'a> {
    fn code(&self) -> i32 {
        self.failure.code
    }

    fn code_is(&self, codes: &[i32]) -> bool {
        codes.contains(&self.failure.code)
    }

    fn nvml_said(&self, code: i32) -> bool {
        self.chain.is_some_and(|chain| chain.has_code(code))
    }

    /// The first call that NVML answered so.
    fn nvml_call(&self, code: i32) -> Option<String> {
        let call = self.chain?.calls.iter().find(|call| call.code == code)?;
        Some(format!("NVML's {}({}) gave {} ({})", call.call, call.args, call.name, call.code))
    }

    /// False: the code itself says that it is something else than the card and the way to it.
    fn may_be_the_card(&self) -> bool {
        !self.code_is(&[2, 34, 35, 200, 209, 218, 221, 222, 804])
    }

    /// What NVML says of the cards that the failure may be about: of the one that was asked for, where CUDA's number means
    /// one for certain, else of all.
    fn cards(&self) -> impl Iterator<Item = &'a Device> + use<'a> {
        let one = self.card();
        let all = self.chain.map(|chain| chain.devices.as_slice()).unwrap_or_default();
        all.iter().filter(move |device| one.is_none_or(|one| one == device.index))
    }

    fn card(&self) -> Option<u32> {
        let asked = u32::try_from(self.failure.device?).ok()?;
        let devices = &self.chain?.devices;
        let cards: Vec<Card> =
            devices.iter().map(|one| Card { uuid: one.uuid.clone(), product: one.name.clone() }).collect();
        let visible = self.machine.variable("CUDA_VISIBLE_DEVICES");
        let by_bus = self.machine.variable("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID");
        let is_it =
            |uuid: &str| ordinal::of(uuid, &cards, visible.as_deref(), by_bus) == Some(Place::At(asked));
        let found =
            devices.iter().find(|one| is_it(&one.uuid) || one.instances.iter().any(|uuid| is_it(uuid)))?;
        Some(found.index)
    }
}

/// A version as CUDA counts them: 12020 = 12.2.
pub(crate) fn cuda(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests;
