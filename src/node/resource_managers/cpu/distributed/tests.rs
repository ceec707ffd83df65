//! Cases of upstream's `TestTakeByTopologyNUMADistributed`.

use super::*;
use crate::resource_managers::cpu_set::tests::set;
use crate::resource_managers::cpu_topology::tests::{dual_12, multi_80, single_8};

#[test]
fn equal_shares_come_from_few_nodes() {
    let (s8, d12, m80) = (single_8(), dual_12(), multi_80());
    let uneven = "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76";
    for (topology, available, count, group, want) in [
        (&s8, "0-7", 1, 1, "0"),
        (&s8, "0-7", 2, 1, "0,4"),
        (&d12, "0-11", 6, 1, "0,2,4,6,8,10"),
        (&d12, "0-11", 8, 1, "0-3,6-9"),
        (&d12, "1-5,7-11", 1, 1, "1"),
        (&d12, "1-5,7-11", 1, 2, "2"),
        (&m80, "0-79", 40, 1, "0-19,40-59"),
        (&m80, "0-79", 64, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
        (&m80, "0-79", 48, 1, "0-7,10-17,20-27,40-47,50-57,60-67"),
        (&m80, "1-29,32-39,41-69,72-79", 48, 1, "1-8,10-17,20-27,41-48,50-57,60-67"),
        (&m80, "2-29,31-39,42-69,71-79", 48, 1, "10-17,20-27,31-38,50-57,60-67,71-78"),
        (
            &m80,
            "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71",
            16,
            1,
            "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71",
        ),
        (&m80, "0-79", 26, 1, "0-6,10-16,40-45,50-55"),
        (&m80, "0-79", 26, 2, "0-6,10-15,40-46,50-55"),
        (&m80, "0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
        (&m80, "0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
        (
            &m80,
            "0-8,10-18,20-48,50-58,60-79",
            62,
            1,
            "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
        ),
        (
            &m80,
            "0-8,10-18,20-48,50-58,60-79",
            62,
            2,
            "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
        ),
        (&m80, uneven, 34, 1, "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74"),
    ] {
        let taken = take_distributed(topology, &set(available), count, group).unwrap();
        assert_eq!(taken.to_string(), set(want).to_string(), "{count} by {group} of {available}");
    }
    let error = take_distributed(&s8, &set("0,2,4,6"), 5, 1).unwrap_err();
    assert_eq!(error, AssignmentError::NotEnough { requested: 5, available: 4 });
}

#[test]
fn the_deviation_has_three_decimals() {
    let values = |list: &[usize]| list.iter().copied().enumerate().collect();
    assert!((standard_deviation(&values(&[1, 2, 4])) - 1.247).abs() < 1e-9);
    assert!(standard_deviation(&values(&[3, 3])).abs() < 1e-9);
}
