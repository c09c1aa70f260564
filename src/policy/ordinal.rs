//! Which number CUDA gives a device in this process, told without asking CUDA.
//!
//! A limit may be set by that number, and somebody who only asks NVML must not start CUDA to learn it. Where it depends
//! on what CUDA alone knows, such as which of two products is the faster one, there is no answer.

/// A card, as NVML lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// `GPU-…`
    pub uuid: String,
    /// The product name.
    pub product: String,
}

/// Where CUDA has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Its number.
    At(u32),
    /// CUDA does not show it to this process.
    Hidden,
}

/// The place of the device `uuid`. `cards`: all, in the order of the bus. `visible`: CUDA_VISIBLE_DEVICES. `by_bus`:
/// CUDA_DEVICE_ORDER is PCI_BUS_ID.
pub fn of(uuid: &str, cards: &[Card], visible: Option<&str>, by_bus: bool) -> Option<Place> {
    if uuid.starts_with("MIG-") {
        // A process sees one instance, and which one is certain only where it is named.
        let first = visible?.split(',').next()?;
        return first.eq_ignore_ascii_case(uuid).then_some(Place::At(0));
    }
    let ours = cards.iter().position(|card| card.uuid.eq_ignore_ascii_case(uuid))?;
    let is_ordered = by_bus || cards.windows(2).all(|pair| matches!(pair, [a, b] if a.product == b.product));
    let Some(visible) = visible else {
        return if is_ordered { Some(Place::At(u32::try_from(ours).ok()?)) } else { None };
    };
    let seen = seen(visible, cards, is_ordered)?;
    let is_twice =
        seen.iter().enumerate().any(|(at, card)| seen.iter().skip(at + 1).any(|other| other == card));
    match seen.iter().position(|card| *card == ours) {
        Some(place) if !is_twice => Some(Place::At(u32::try_from(place).ok()?)),
        // One that is named twice leaves no device at all.
        _ => Some(Place::Hidden),
    }
}

/// The cards that the list names, up to its first entry that names none.
fn seen(list: &str, cards: &[Card], is_ordered: bool) -> Option<Vec<usize>> {
    let is_number = |entry: &str| !entry.is_empty() && entry.bytes().all(|b| b.is_ascii_digit());
    let mut seen = Vec::new();
    let by_number = list.split(',').next().is_some_and(is_number);
    for entry in list.split(',') {
        if is_number(entry) != by_number || entry.starts_with("MIG-") {
            // Both kinds in one list, or instances: what that means differs between drivers.
            if is_number(entry) || entry.starts_with("GPU-") || entry.starts_with("MIG-") {
                return None;
            }
            break;
        }
        let card = if by_number {
            if !is_ordered {
                return None;
            }
            entry.parse().ok().filter(|number| *number < cards.len())
        } else {
            by_beginning(entry, cards)
        };
        let Some(card) = card else { break };
        seen.push(card);
    }
    Some(seen)
}

/// The one card whose UUID begins so.
fn by_beginning(entry: &str, cards: &[Card]) -> Option<usize> {
    if !entry.starts_with("GPU-") {
        return None;
    }
    let begins =
        |card: &Card| card.uuid.get(..entry.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(entry));
    let mut found = cards.iter().enumerate().filter(|(_, card)| begins(card)).map(|(at, _)| at);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cards(products: &[&str]) -> Vec<Card> {
        let card = |(at, product): (usize, &&str)| Card {
            uuid: format!("GPU-{at}a00"),
            product: (*product).to_owned(),
        };
        products.iter().enumerate().map(card).collect()
    }

    #[test]
    fn equal_cards_are_in_the_order_of_the_bus() {
        let cards = cards(&["A", "A", "A"]);
        let at = |uuid, visible| of(uuid, &cards, visible, false);
        assert_eq!(at("GPU-1a00", None), Some(Place::At(1)));
        assert_eq!(at("GPU-1A00", Some("1")), Some(Place::At(0)));
        assert_eq!(at("GPU-0a00", Some("2,0")), Some(Place::At(1)));
        assert_eq!(at("GPU-1a00", Some("2,0")), Some(Place::Hidden));
        assert_eq!(at("GPU-0a00", Some("GPU-2,GPU-0a")), Some(Place::At(1)));
        assert_eq!(at("GPU-7", None), None, "no such card");
    }

    #[test]
    fn a_list_ends_where_it_is_wrong() {
        let cards = cards(&["A", "A", "A"]);
        let at = |uuid, visible| of(uuid, &cards, Some(visible), false);
        for (visible, expected) in [
            ("", Place::Hidden),
            ("-1", Place::Hidden),
            ("NoDevFiles", Place::Hidden),
            ("1,-1,0", Place::Hidden),
            ("1,9,0", Place::Hidden),
            ("1,0,-1", Place::At(1)),
            ("0,1,0", Place::Hidden),
            ("GPU-,GPU-0", Place::Hidden),
            ("99999999999999999999", Place::Hidden),
        ] {
            assert_eq!(at("GPU-0a00", visible), Some(expected), "{visible}");
        }
        for visible in ["0,GPU-1", "GPU-1,0", "MIG-1", "0,MIG-1"] {
            assert_eq!(at("GPU-0a00", visible), None, "{visible}");
        }
    }

    #[test]
    fn what_only_cuda_knows_has_no_answer() {
        let cards = cards(&["A", "B"]);
        assert_eq!(of("GPU-0a00", &cards, None, false), None);
        assert_eq!(of("GPU-0a00", &cards, Some("0"), false), None);
        assert_eq!(of("GPU-1a00", &cards, None, true), Some(Place::At(1)));
        assert_eq!(of("GPU-1a00", &cards, Some("GPU-1"), false), Some(Place::At(0)), "named by itself");
    }

    #[test]
    fn an_instance_is_the_one_that_is_named() {
        assert_eq!(of("MIG-ab", &[], Some("MIG-AB"), false), Some(Place::At(0)));
        assert_eq!(of("MIG-ab", &[], Some("MIG-cd,MIG-ab"), false), None);
        assert_eq!(of("MIG-ab", &[], None, false), None);
    }
}
