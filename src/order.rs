//! Sorting in little code: the standard library's sort takes 3 KB for each type, and the shim sorts short lists of many.

/// Sorts, smallest first. Equal ones end up in any order. No memory is taken.
#[inline]
pub fn sort<T>(list: &mut [T], is_less: impl Fn(&T, &T) -> bool) {
    let is_less = |list: &[T], a: usize, b: usize| match (list.get(a), list.get(b)) {
        (Some(a), Some(b)) => is_less(a, b),
        _ => false,
    };
    // A heap with the largest in front, whose front goes to the end again and again.
    for root in (0..list.len() / 2).rev() {
        sift(list, root, &is_less);
    }
    for end in (1..list.len()).rev() {
        list.swap(0, end);
        if let Some(heap) = list.get_mut(..end) {
            sift(heap, 0, &is_less);
        }
    }
}

/// Lets one sink to its place.
fn sift<T>(heap: &mut [T], mut root: usize, is_less: &impl Fn(&[T], usize, usize) -> bool) {
    loop {
        let left = root * 2 + 1;
        if left >= heap.len() {
            return;
        }
        let right = left + 1;
        let larger = if right < heap.len() && is_less(heap, left, right) { right } else { left };
        if !is_less(heap, root, larger) {
            return;
        }
        heap.swap(root, larger);
        root = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::sort;

    #[test]
    fn it_sorts() {
        let mut state = 1u32;
        for length in 0..200 {
            let mut list: Vec<u32> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 25
                })
                .collect();
            let mut expected = list.clone();
            expected.sort();
            sort(&mut list, |a, b| a < b);
            assert_eq!(list, expected);
        }
    }
}
