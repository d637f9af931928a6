use super::*;

#[test]
fn layers_put_on_top_are_found_as_a_plain_array_says() {
    const BLOCKS: usize = 150;
    let mut seed = 42u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        seed >> 20
    };
    for _ in 0..500 {
        let mut map = DiskMap::default();
        let mut model = [None; BLOCKS];
        for layer in 0..1 + random() % 6 {
            let bits: Vec<u64> = (0..3)
                .map(|_| (random() & random()) << (random() % 30))
                .collect();
            let held = Extents::from_bitmap(&bits, BLOCKS as u64);
            map.cover(&held, layer as usize);
            for block in held.iter().flat_map(|extent| extent.range()) {
                model[block as usize] = Some(layer as usize);
            }
        }
        let mut block = 0;
        while block < BLOCKS as u64 {
            let end = BLOCKS as u64 - random() % (BLOCKS as u64 - block);
            let (layer, run) = map.find(block, end);
            assert!(run > block && run <= end);
            let same = &model[block as usize..run as usize];
            assert!(same.iter().all(|&owner| owner == layer), "{block}..{run}");
            block = run;
        }
    }
}
