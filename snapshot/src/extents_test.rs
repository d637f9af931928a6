use super::*;

fn set(ranges: &[(u64, u64)]) -> Extents {
    let mut set = Extents::new();
    for &(start, len) in ranges {
        set.push(start, len);
    }
    set
}

fn members(set: &Extents) -> Vec<u64> {
    set.iter().flat_map(Extent::range).collect()
}

#[test]
fn ranges_that_touch_become_one() {
    let set = set(&[(1, 2), (3, 1), (5, 0), (6, 2)]);
    assert_eq!(members(&set), [1, 2, 3, 6, 7]);
    assert_eq!((set.ranges(), set.blocks()), (2, 5));
    let inside: Vec<_> = (0..10).filter(|&block| set.contains(block)).collect();
    assert_eq!(inside, [1, 2, 3, 6, 7]);
}

#[test]
fn only_the_one_form_of_a_set_is_taken_from_a_file() {
    let extent = |start, len| Extent { start, len };
    let checked = |ranges: &[Extent]| Extents::checked(ranges.to_vec(), 10);
    assert!(checked(&[extent(0, 2), extent(3, 7)]).is_ok());
    assert_eq!(checked(&[extent(0, 0)]), Err(ExtentsError::Empty(0)));
    assert_eq!(
        checked(&[extent(0, 2), extent(2, 1)]),
        Err(ExtentsError::Order(1))
    );
    assert_eq!(
        checked(&[extent(4, 2), extent(1, 1)]),
        Err(ExtentsError::Order(1))
    );
    for len in [8, u64::MAX - 3, u64::MAX] {
        assert!(matches!(
            checked(&[extent(3, len)]),
            Err(ExtentsError::PastEnd { index: 0, .. })
        ));
    }
}

#[test]
fn bitmaps_and_differences_agree_with_a_plain_model() {
    // A small generator (xorshift) is enough to try many shapes.
    let mut seed = 88_172_645_463_325_252u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..500 {
        let blocks = random() % 200;
        let sparse = |random: &mut dyn FnMut() -> u64| match round % 3 {
            0 => random() & random(),
            1 => random() | random(),
            _ => random(),
        };
        let a: Vec<u64> = (0..4).map(|_| sparse(&mut random)).collect();
        let b: Vec<u64> = (0..4).map(|_| sparse(&mut random)).collect();
        let bits = |map: &[u64]| -> Vec<u64> {
            (0..blocks)
                .filter(|n| map[(n / 64) as usize] >> (n % 64) & 1 == 1)
                .collect()
        };
        let (set_a, set_b) = (
            Extents::from_bitmap(&a, blocks),
            Extents::from_bitmap(&b, blocks),
        );
        assert_eq!(members(&set_a), bits(&a));
        assert_eq!(
            Extents::checked(set_a.0.clone(), blocks).as_ref(),
            Ok(&set_a)
        );
        let rest = set_a.minus(&set_b);
        let model: Vec<_> = bits(&a)
            .into_iter()
            .filter(|n| !bits(&b).contains(n))
            .collect();
        assert_eq!(members(&rest), model);
        assert_eq!(set_b.covers(&set_a), model.is_empty());
    }
}

#[test]
fn a_bitmap_that_is_too_short_ends_the_set() {
    assert_eq!(Extents::from_bitmap(&[u64::MAX], 1000).blocks(), 64);
    assert_eq!(Extents::from_bitmap(&[], 1000), Extents::new());
}
