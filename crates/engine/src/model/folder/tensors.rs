//! Tensors of a folder by name, wherever they lie, read row by row as f32.
//!
//! Files are read and not mapped: mapping is `unsafe` (another process may cut the file), and every byte is converted
//! anyway. Besides the weights themselves only a megabyte is held.

use super::FolderError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// As the safetensors library limits it.
const MOST_HEADER_BYTES: u64 = 100_000_000;
const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct Tensors {
    files: Vec<Shard>,
    /// The file that each name must be in, by position in `files`.
    place: BTreeMap<String, usize>,
    /// What says which tensors there are: the index, or the only file.
    list: PathBuf,
    unused: BTreeSet<String>,
}

struct Shard {
    path: PathBuf,
    file: File,
    /// Where the data begins, in bytes.
    data: u64,
    header: Metadata,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Tensors {
    pub(super) fn open(folder: &Path) -> Result<Self, FolderError> {
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        if single.exists() {
            let shard = Shard::open(single.clone())?;
            let place: BTreeMap<_, _> = shard.header.tensors().into_keys().map(|name| (name, 0)).collect();
            let unused = place.keys().cloned().collect();
            return Ok(Tensors { files: vec![shard], place, list: single, unused });
        }
        if !index.exists() {
            return Err(FolderError::new(folder, format!("has neither {SINGLE} nor {INDEX}")));
        }
        let bytes =
            std::fs::read(&index).map_err(|error| FolderError::new(&index, format!("cannot be read: {error}")))?;
        let parsed: Index = serde_json::from_slice(&bytes)
            .map_err(|error| FolderError::new(&index, format!("is not what it should be: {error}")))?;
        let names: BTreeSet<&String> = parsed.weight_map.values().collect();
        let mut files = Vec::with_capacity(names.len());
        for name in &names {
            if Path::new(name).file_name().is_none_or(|plain| plain.to_str() != Some(name.as_str())) {
                return Err(FolderError::new(&index, format!("names {name:?}, which is no file of this folder")));
            }
            files.push(Shard::open(folder.join(name))?);
        }
        let position = |name: &String| names.iter().position(|known| *known == name).unwrap_or(0);
        let place: BTreeMap<_, _> =
            parsed.weight_map.iter().map(|(name, file)| (name.clone(), position(file))).collect();
        let unused = place.keys().cloned().collect();
        Ok(Tensors { files, place, list: index, unused })
    }

    /// Whether there is such a tensor of this shape. Reads nothing.
    pub(super) fn check(&self, name: &str, shape: &[usize]) -> Result<(), FolderError> {
        self.find(name, shape).map(|_| ())
    }

    /// Calls `take` with every row of a matrix `[rows][width]`, in order.
    pub(super) fn rows(
        &mut self,
        name: &str,
        shape: [usize; 2],
        take: impl FnMut(usize, &[f32]),
    ) -> Result<(), FolderError> {
        self.read(name, &shape, shape[1], take)
    }

    pub(super) fn vector(&mut self, name: &str, width: usize) -> Result<Vec<f32>, FolderError> {
        self.check(name, &[width])?;
        let mut values = Vec::with_capacity(width);
        self.read(name, &[width], width, |_, row| values.extend_from_slice(row))?;
        Ok(values)
    }

    /// Tensors that the model has no use for: usually harmless (old rotary tables), sometimes a sign of another model.
    pub(super) fn warn_of_unused(&self) {
        let strange: Vec<_> = self.unused.iter().filter(|name| !name.ends_with("rotary_emb.inv_freq")).collect();
        if let Some(first) = strange.first() {
            tracing::warn!(file = %self.list.display(), tensors = strange.len(), first = %first, "tensors are not used");
        }
    }

    fn read(
        &mut self,
        name: &str,
        shape: &[usize],
        width: usize,
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<(), FolderError> {
        let (place, info, decode) = self.find(name, shape)?;
        self.unused.remove(name);
        let shard = &mut self.files[place];
        let mut strange = None;
        let mut look = |row: usize, values: &[f32]| {
            if !are_finite(values) {
                strange.get_or_insert(row);
            }
            take(row, values);
        };
        read_rows(&mut shard.file, shard.data, &info, width, decode, &mut look)
            .map_err(|error| FolderError::tensor(&shard.path, name, format!("cannot be read: {error}")))?;
        match strange {
            None => Ok(()),
            Some(row) => {
                let what = format!("row {row} has a number that is infinite or none at all: the file is damaged");
                Err(FolderError::tensor(&shard.path, name, what))
            }
        }
    }

    /// The position of its file, what the header says of it, and how it is read.
    fn find(&self, name: &str, shape: &[usize]) -> Result<(usize, TensorInfo, Decode), FolderError> {
        let Some(place) = self.place.get(name) else {
            return Err(FolderError::tensor(&self.list, name, "is missing"));
        };
        let shard = &self.files[*place];
        let wrong = |what: String| FolderError::tensor(&shard.path, name, what);
        let Some(info) = shard.header.info(name) else {
            return Err(wrong(format!("is missing, though {} says it is here", self.list.display())));
        };
        if info.shape != shape {
            return Err(wrong(format!("has the shape {:?}, the config asks for {shape:?}", info.shape)));
        }
        let Some(decode) = decoder(info.dtype) else {
            return Err(wrong(format!("is {}, supported are F32, BF16 and F16", info.dtype)));
        };
        Ok((*place, info.clone(), decode))
    }
}

/// Bytes to f32, and how many bytes one number has.
type Decode = (usize, fn(&[u8], &mut Vec<f32>));

fn decoder(dtype: Dtype) -> Option<Decode> {
    match dtype {
        Dtype::F32 => Some((4, |bytes, to| to.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))))),
        Dtype::BF16 => Some((2, |bytes, to| to.extend(halves(bytes).map(bf16)))),
        Dtype::F16 => Some((2, |bytes, to| to.extend(halves(bytes).map(f16)))),
        _ => None,
    }
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
}

fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Exact: every f16 is an f32.
pub(super) fn f16(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15) << 31, u32::from(bits >> 10) & 31, u32::from(bits) & 1023);
    let magnitude = match exponent {
        // Subnormal: an integer times 2^-24.
        0 => return f32::from_bits(sign | (fraction as f32 * (1.0 / 16_777_216.0)).to_bits()),
        31 => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 127 - 15) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// One that is not would spread to every answer, as garbage and without a word. Looks at all of them, which is faster than
/// to stop at the first.
fn are_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    !values.iter().fold(false, |found, value| found | (value.to_bits() & EXPONENT == EXPONENT))
}

fn read_rows(
    file: &mut File,
    data: u64,
    info: &TensorInfo,
    width: usize,
    (size, decode): Decode,
    take: &mut impl FnMut(usize, &[f32]),
) -> std::io::Result<()> {
    let (start, end) = info.data_offsets;
    file.seek(SeekFrom::Start(data + start as u64))?;
    let row_bytes = (width * size).max(1);
    let rows = (end - start) / row_bytes;
    let at_once = (BUFFER_BYTES / row_bytes).clamp(1, rows.max(1));
    let mut bytes = vec![0; at_once * row_bytes];
    let mut values = Vec::with_capacity(at_once * width);
    let mut row = 0;
    while row < rows {
        let count = at_once.min(rows - row);
        let bytes = &mut bytes[..count * row_bytes];
        file.read_exact(bytes)?;
        values.clear();
        decode(bytes, &mut values);
        for values in values.chunks_exact(width) {
            take(row, values);
            row += 1;
        }
    }
    Ok(())
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self, FolderError> {
        let unreadable = |error: std::io::Error| FolderError::new(&path, format!("cannot be read: {error}"));
        let mut file = File::open(&path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut head = [0; 8];
        file.read_exact(&mut head).map_err(|_| FolderError::new(&path, "is no safetensors file: it is too short"))?;
        let header_bytes = u64::from_le_bytes(head);
        if header_bytes > MOST_HEADER_BYTES || header_bytes + 8 > length {
            return Err(FolderError::new(&path, "is no safetensors file, or its header is cut off"));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|error| FolderError::new(&path, format!("its safetensors header is broken: {error}")))?;
        let data = 8 + header_bytes;
        let expected = data + header.data_len() as u64;
        if expected != length {
            return Err(FolderError::new(&path, format!("has {length} bytes, its header says {expected}")));
        }
        Ok(Shard { path, file, data, header })
    }
}
