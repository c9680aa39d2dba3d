#![allow(unsafe_code)]
//! Arrays by the Arrow C data interface: numbers along one axis, or a fixed-shape tensor for each row.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};

use crate::abi::{ArrowArray, ArrowSchema};
use crate::import::{Release, place};
use crate::{Foreign, Layout, MAX_NDIM, Owner, Result, dtype, refuse};

const NAME: &str = "ARROW:extension:name";
const DETAILS: &str = "ARROW:extension:metadata";
const TENSOR: &str = "arrow.fixed_shape_tensor";

// ---- out ------------------------------------------------------------------------------------

/// What a schema that we gave out owns.
struct SchemaParts {
    format: CString,
    metadata: Vec<u8>,
    child: Option<Box<ArrowSchema>>,
    children: [*mut ArrowSchema; 1],
}

/// What an array that we gave out owns.
struct ArrayParts<O> {
    buffers: [*const c_void; 2],
    child: Option<Box<ArrowArray>>,
    children: [*mut ArrowArray; 1],
    _owner: Option<O>,
}

/// Describes and gives out a C-ordered array: each row along its first axis becomes one element, a
/// number or a fixed-shape tensor.
///
/// Whoever gets them must see that their release callbacks are called, once each.
///
/// # Errors
///
/// For arrays without axes, and for types that Arrow doesn't have.
pub fn export<O: Owner>(
    data: *const u8,
    text: &str,
    shape: &[i64],
    owner: O,
) -> Result<(ArrowSchema, ArrowArray)> {
    let format = dtype::arrow_format(text)?;
    let Some((&rows, row)) = shape.split_first() else {
        return refuse("Arrow has no arrays without axes: export x.reshape(1)");
    };
    let numbers = row.iter().product::<i64>();
    let leaf = array(rows * if row.is_empty() { 1 } else { numbers }, Some((data, owner)), None);
    if row.is_empty() {
        return Ok((schema(format, Vec::new(), None), leaf));
    }
    let Ok(numbers) = i32::try_from(numbers) else {
        return refuse(format!(
            "Arrow takes at most {} numbers to a row, this array has {numbers}",
            i32::MAX
        ));
    };
    let details = format!("{{\"shape\":[{}]}}", row.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
    let metadata = pairs(&[(NAME, TENSOR), (DETAILS, &details)]);
    let item = Box::new(schema(format, Vec::new(), None));
    Ok((schema(&format!("+w:{numbers}"), metadata, Some(item)), array::<O>(rows, None, Some(Box::new(leaf)))))
}

fn schema(format: &str, metadata: Vec<u8>, child: Option<Box<ArrowSchema>>) -> ArrowSchema {
    let format = CString::new(format).expect("formats have no zeros");
    let mut parts = Box::new(SchemaParts { format, metadata, child, children: [ptr::null_mut()] });
    let n_children = i64::from(parts.child.is_some());
    if let Some(child) = parts.child.as_deref_mut() {
        parts.children = [ptr::from_mut(child)];
    }
    let (format, children) = (parts.format.as_ptr(), parts.children.as_mut_ptr());
    let metadata = if parts.metadata.is_empty() { ptr::null() } else { parts.metadata.as_ptr().cast() };
    ArrowSchema {
        format,
        name: if n_children == 0 { c"item".as_ptr() } else { c"".as_ptr() },
        metadata,
        flags: 0,
        n_children,
        children: if n_children == 0 { ptr::null_mut() } else { children },
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: Box::into_raw(parts).cast(),
    }
}

fn array<O: Owner>(
    length: i64,
    numbers: Option<(*const u8, O)>,
    child: Option<Box<ArrowArray>>,
) -> ArrowArray {
    let (data, owner) = numbers.unzip();
    let buffers = [ptr::null(), data.unwrap_or(ptr::null()).cast()];
    let mut parts = Box::new(ArrayParts { buffers, child, children: [ptr::null_mut()], _owner: owner });
    let n_children = i64::from(parts.child.is_some());
    if let Some(child) = parts.child.as_deref_mut() {
        parts.children = [ptr::from_mut(child)];
    }
    let (buffers, children) = (parts.buffers.as_mut_ptr(), parts.children.as_mut_ptr());
    ArrowArray {
        length,
        null_count: 0,
        offset: 0,
        n_buffers: 2 - n_children,
        n_children,
        buffers,
        children: if n_children == 0 { ptr::null_mut() } else { children },
        dictionary: ptr::null_mut(),
        release: Some(release_array::<O>),
        private_data: Box::into_raw(parts).cast(),
    }
}

unsafe extern "C" fn release_schema(given: *mut ArrowSchema) {
    // SAFETY: the consumer passes a structure that `schema` has made.
    let Some(_) = (unsafe { (*given).release.take() }) else { return };
    // SAFETY: as above, and it wasn't released before.
    let mut parts = unsafe { Box::from_raw((*given).private_data.cast::<SchemaParts>()) };
    if let Some(child) = parts.child.as_deref_mut() {
        release(child);
    }
}

unsafe extern "C" fn release_array<O: Owner>(given: *mut ArrowArray) {
    // SAFETY: the consumer passes a structure that `array` has made.
    let Some(_) = (unsafe { (*given).release.take() }) else { return };
    // SAFETY: as above, and it wasn't released before.
    let mut parts = unsafe { Box::from_raw((*given).private_data.cast::<ArrayParts<O>>()) };
    if let Some(child) = parts.child.as_deref_mut() {
        release(child);
    }
}

/// A structure that its consumer releases.
trait Releasable {
    /// Calls the callback, unless that has been done or the contents were moved elsewhere.
    fn release(&mut self);
}

impl Releasable for ArrowSchema {
    fn release(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the structure is alive, as its callback isn't null.
            unsafe { release(self) }
        }
    }
}

impl Releasable for ArrowArray {
    fn release(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the structure is alive, as its callback isn't null.
            unsafe { release(self) }
        }
    }
}

fn release(given: &mut impl Releasable) {
    given.release();
}

/// Keys and values as a schema holds them.
fn pairs(all: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = (all.len() as i32).to_ne_bytes().to_vec();
    for part in all.iter().flat_map(|(key, value)| [key, value]) {
        bytes.extend((part.len() as i32).to_ne_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

// ---- in -------------------------------------------------------------------------------------

/// An array that was handed over; dropping it releases it.
#[derive(Debug)]
pub(crate) struct Held(ArrowArray);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// An array of somebody else, and the shape of its rows if it says one, as JSON.
pub type Taken = (Foreign, Option<String>);

/// Takes over an Arrow array of numbers, or of fixed-size lists of numbers. Whatever happens, both
/// structures end up released.
///
/// # Errors
///
/// A sentence that says what of it can't be.
///
/// # Safety
///
/// Both come from a producer that follows the Arrow C data interface, and nobody else releases them.
pub unsafe fn import(schema: NonNull<ArrowSchema>, array: NonNull<ArrowArray>) -> Result<Taken> {
    struct Schema(ArrowSchema);
    impl Drop for Schema {
        fn drop(&mut self) {
            self.0.release();
        }
    }
    // SAFETY: the caller passes both; moving out leaves a null callback behind, as the interface says.
    let (schema, held) = unsafe {
        let moved = (Schema(schema.as_ptr().read()), Held(array.as_ptr().read()));
        (*schema.as_ptr()).release = None;
        (*array.as_ptr()).release = None;
        moved
    };
    if schema.0.is_released() || held.0.is_released() {
        return refuse("it was released, or taken over, before");
    }
    // SAFETY: the caller answers for what the structures point to.
    unsafe {
        let details = details(&schema.0)?;
        let Numbers { buffer, offset, text, shape } = read(&schema.0, &held.0, 0, None, 0)?;
        let layout = Layout::new(&shape, None, dtype::itemsize(dtype::code(text)?))?;
        let data = place(buffer, offset, &layout)?;
        let foreign =
            Foreign { data, dtype: text, layout, readonly: true, _release: Release::Arrow { _held: held } };
        Ok((foreign, details))
    }
}

/// The numbers of an array, not yet checked against the address space.
struct Numbers {
    buffer: *mut u8,
    /// Bytes to the first number.
    offset: u64,
    text: &'static str,
    shape: Vec<i64>,
}

/// Finds the numbers of an array, or of the lists in it; `depth` lists deep.
///
/// # Safety
///
/// Both follow the interface.
unsafe fn read(
    schema: &ArrowSchema,
    array: &ArrowArray,
    skip: i64,
    length: Option<i64>,
    depth: usize,
) -> Result<Numbers> {
    if depth > MAX_NDIM {
        return refuse(format!("its lists are nested; at most {MAX_NDIM} axes are taken"));
    }
    if schema.format.is_null() {
        return refuse("its schema has no format");
    }
    // SAFETY: a format that isn't null is a text.
    let format = unsafe { CStr::from_ptr(schema.format) }.to_string_lossy();
    let length = length.unwrap_or(array.length);
    let offset = array.offset.checked_add(skip).filter(|_| array.offset >= 0);
    let end = offset.and_then(|offset| offset.checked_add(length)).filter(|_| length >= 0 && skip >= 0);
    let (Some(offset), Some(end)) = (offset, end) else {
        return refuse(format!("its length {length} from offset {} can't be", array.offset));
    };
    if end > array.length.saturating_add(array.offset) {
        return refuse(format!("its rows need {end} elements, its child has {}", array.length));
    }
    // SAFETY: an array with buffers has a list of them.
    let buffer = |i: i64| unsafe { *array.buffers.add(i as usize) };
    if array.buffers.is_null() || array.n_buffers < 1 {
        return refuse("it has no buffers");
    }
    if array.null_count != 0 && !buffer(0).is_null() {
        return refuse("it may have nulls: fill them first");
    }
    if let Some(width) = format.strip_prefix("+w:") {
        let width: i64 = width.parse().ok().filter(|&width| width >= 0).unwrap_or(-1);
        let (first, all) = (offset.checked_mul(width), length.checked_mul(width));
        // SAFETY: a structure that says it has a child has a list of one.
        let lone = unsafe {
            schema.n_children == 1
                && array.n_children == 1
                && !schema.children.is_null()
                && !array.children.is_null()
                && !(*schema.children).is_null()
                && !(*array.children).is_null()
        };
        let (Some(first), Some(all), true) = (first, all, lone && width >= 0) else {
            return refuse(format!(
                "its lists can't be read: format {format}, offset {offset}, length {length}"
            ));
        };
        // SAFETY: both have one child each.
        let (item, items) = unsafe { (&**schema.children, &**array.children) };
        // SAFETY: children follow the interface as their parents do.
        let inner = unsafe { read(item, items, first, Some(all), depth + 1) }?;
        let shape = [length, width].into_iter().chain(inner.shape.into_iter().skip(1)).collect();
        return Ok(Numbers { shape, ..inner });
    }
    let text = dtype::from_arrow(&format)?;
    if array.n_buffers != 2 || !array.dictionary.is_null() {
        return refuse(format!("its numbers of format {format} come with {} buffers", array.n_buffers));
    }
    let by = offset.checked_mul(dtype::itemsize(dtype::code(text)?) as i64);
    let by = by.and_then(|by| u64::try_from(by).ok());
    let Some(offset) = by else {
        return refuse(format!("its {length} elements from {offset} lie beyond all memory"));
    };
    Ok(Numbers { buffer: buffer(1).cast_mut().cast(), offset, text, shape: vec![length] })
}

/// The details of a fixed-shape tensor, if it is one.
///
/// # Safety
///
/// The schema follows the interface.
unsafe fn details(schema: &ArrowSchema) -> Result<Option<String>> {
    if schema.metadata.is_null() {
        return Ok(None);
    }
    let mut at = schema.metadata.cast::<u8>();
    let number = |at: &mut *const u8| {
        // SAFETY: metadata is as long as its own numbers say.
        let number = unsafe { at.cast::<i32>().read_unaligned() };
        *at = at.wrapping_add(4);
        usize::try_from(number).or_else(|_| refuse("its metadata has a negative length"))
    };
    let text = |at: &mut *const u8| {
        let len = number(at)?;
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(*at, len) };
        *at = at.wrapping_add(len);
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let (mut tensor, mut details) = (false, None);
    for _ in 0..number(&mut at)? {
        let (key, value) = (text(&mut at)?, text(&mut at)?);
        tensor |= key == NAME && value == TENSOR;
        details = if key == DETAILS { Some(value) } else { details };
    }
    Ok(details.filter(|_| tensor))
}
