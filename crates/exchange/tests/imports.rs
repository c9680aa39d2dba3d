//! Whatever a capsule says, an import is refused or stays inside the memory that it described.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::*};

use proptest::prelude::*;
use ropeway_exchange::abi::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor};
use ropeway_exchange::{Foreign, Layout, MAX_NDIM, dtype};

unsafe extern "C" fn count(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the context is the counter of the test that made the tensor.
    unsafe { &*(*managed).context.cast::<AtomicUsize>() }.fetch_add(1, AcqRel);
}

fn numbers() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -3..9i64,
        2 => prop::sample::select(vec![i64::MIN, i64::MIN + 1, i64::MAX, 1 << 31, 1 << 62, -1, 0, 1]),
        1 => any::<i64>(),
    ]
}

fn addresses() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(0x10), Just(1 << 40), Just(usize::MAX - 7), any::<usize>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_import_is_refused_or_makes_sense(
        major in prop_oneof![9 => Just(1u32), 1 => any::<u32>()],
        minor: u32,
        flags: u64,
        device in prop_oneof![6 => Just(1), 1 => 0..20i32, 1 => any::<i32>()],
        ndim in prop_oneof![12 => 0..5i32, 1 => Just(65), 1 => Just(-1), 1 => any::<i32>()],
        code in prop_oneof![6 => prop::sample::select(vec![0u8, 1, 2, 4, 5, 6, 10, 12]), 1 => any::<u8>()],
        bits in prop_oneof![6 => prop::sample::select(vec![8u8, 16, 32, 64]), 1 => any::<u8>()],
        lanes in prop_oneof![9 => Just(1u16), 1 => any::<u16>()],
        mut shape in prop::collection::vec(numbers(), MAX_NDIM),
        mut strides in prop::option::of(prop::collection::vec(numbers(), MAX_NDIM)),
        no_shape in prop::bool::weighted(0.05),
        data in addresses(),
        byte_offset in prop_oneof![4 => Just(0u64), 1 => 0..999u64, 1 => any::<u64>()],
    ) {
        let deleted = AtomicUsize::new(0);
        let mut managed = DLManagedTensorVersioned {
            version: DLPackVersion { major, minor },
            context: ptr::from_ref(&deleted).cast_mut().cast::<c_void>(),
            deleter: Some(count),
            flags,
            tensor: DLTensor {
                data: ptr::without_provenance_mut(data),
                device: DLDevice { kind: device, id: 0 },
                ndim,
                dtype: DLDataType { code, bits, lanes },
                shape: if no_shape { ptr::null_mut() } else { shape.as_mut_ptr() },
                strides: strides.as_mut().map_or(ptr::null_mut(), |s| s.as_mut_ptr()),
                byte_offset,
            },
        };
        // SAFETY: shape and strides have as many entries as an import reads at most.
        let taken = unsafe { Foreign::versioned(NonNull::from(&mut managed)) };
        if let Ok(foreign) = &taken {
            prop_assert_eq!(deleted.load(Acquire), 0);
            prop_assert!(major == 1 && lanes == 1 && matches!(device, 1 | 3 | 11));
            prop_assert_eq!(foreign.layout.shape.len() as i32, ndim);
            let span = foreign.layout.span;
            if span > 0 {
                let start = foreign.start().addr();
                prop_assert!(start > 0 && start.checked_add(span).is_some_and(|end| end <= isize::MAX as usize));
                prop_assert!(foreign.layout.before < span);
                prop_assert_eq!(foreign.data.addr() as u128, data as u128 + u128::from(byte_offset));
            } else {
                prop_assert!(foreign.layout.shape.contains(&0));
            }
        }
        drop(taken);
        prop_assert_eq!(deleted.load(Acquire), 1, "the deleter runs once, whatever happens");
    }

    #[test]
    fn every_element_lies_in_the_span(
        axes in prop::collection::vec((0..5i64, -9..9i64), 0..5),
        itemsize in prop::sample::select(vec![1usize, 2, 4, 8, 16]),
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
        let layout = Layout::new(&shape, Some(&strides), itemsize).unwrap();
        let mut offsets = vec![0i64];
        for (&n, &stride) in shape.iter().zip(&strides) {
            offsets = offsets.iter().flat_map(|o| (0..n).map(move |i| o + i * stride)).collect();
        }
        prop_assert_eq!(offsets.len(), layout.len());
        if let (Some(low), Some(high)) = (offsets.iter().min(), offsets.iter().max()) {
            prop_assert_eq!(layout.before as i64, -low * itemsize as i64);
            prop_assert_eq!(layout.span as i64, (high - low + 1) * itemsize as i64);
        }
    }

    #[test]
    fn a_span_is_exact_however_large_the_numbers_or_refused(
        axes in prop::collection::vec((1..5i64, numbers()), 1..4),
        itemsize in prop::sample::select(vec![1usize, 8, 16]),
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = axes.iter().copied().unzip();
        let far = |(n, stride): &(i64, i64)| i128::from(n - 1) * i128::from(*stride) * itemsize as i128;
        let low: i128 = axes.iter().map(far).filter(|far| *far < 0).sum();
        let high: i128 = axes.iter().map(far).filter(|far| *far > 0).sum::<i128>() + itemsize as i128;
        match Layout::new(&shape, Some(&strides), itemsize) {
            Ok(layout) => prop_assert_eq!((layout.before as i128, layout.span as i128), (-low, high - low)),
            Err(_) => prop_assert!(high - low > i128::from(i64::MAX)),
        }
    }

    #[test]
    fn compact_layouts_are_known(shape in prop::collection::vec(0..6i64, 0..5)) {
        let layout = Layout::new(&shape, None, 4).unwrap();
        prop_assert!(layout.is_compact());
        prop_assert_eq!(layout.span, layout.len() * 4);
    }

    #[test]
    fn texts_never_panic(text in "\\PC*") {
        let _ = (dtype::code(&text), dtype::arrow_format(&text), dtype::from_arrow(&text));
    }
}
