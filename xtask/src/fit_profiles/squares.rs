//! Least squares with coefficients that are not negative, for three unknowns: a time cannot shrink with more work.

/// Coefficients that minimise the sum of squared *relative* errors of `rows` (features, measured). Seven subsets of three
/// unknowns are few enough to try them all.
pub(super) fn not_negative(rows: &[([f64; 3], f64)]) -> [f64; 3] {
    let scaled: Vec<[f64; 3]> = rows.iter().map(|(x, y)| x.map(|value| value / y)).collect();
    let mut best = ([0.0; 3], f64::INFINITY);
    for subset in 1..8_usize {
        let used: Vec<usize> = (0..3).filter(|column| subset & (1 << column) != 0).collect();
        let Some(found) = normal_equations(&scaled, &used) else { continue };
        if found.iter().any(|value| *value < 0.0) {
            continue;
        }
        let error: f64 = scaled.iter().map(|x| (dot(x, &found) - 1.0).powi(2)).sum();
        if error < best.1 {
            best = (found, error);
        }
    }
    best.0
}

pub(super) fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves for the `used` columns with right-hand sides of one; the others are zero.
fn normal_equations(rows: &[[f64; 3]], used: &[usize]) -> Option<[f64; 3]> {
    let size = used.len();
    let mut matrix = vec![vec![0.0; size + 1]; size];
    for row in rows {
        for (i, a) in used.iter().enumerate() {
            for (j, b) in used.iter().enumerate() {
                matrix[i][j] += row[*a] * row[*b];
            }
            matrix[i][size] += row[*a];
        }
    }
    for pivot in 0..size {
        let largest = (pivot..size).max_by(|a, b| matrix[*a][pivot].abs().total_cmp(&matrix[*b][pivot].abs()))?;
        matrix.swap(pivot, largest);
        if matrix[pivot][pivot] == 0.0 {
            return None;
        }
        let head = matrix[pivot].clone();
        for (index, row) in matrix.iter_mut().enumerate().filter(|(index, _)| *index != pivot) {
            let factor = row[pivot] / head[pivot];
            debug_assert_ne!(index, pivot);
            row.iter_mut().zip(&head).for_each(|(cell, head)| *cell -= factor * head);
        }
    }
    let mut found = [0.0; 3];
    for (index, column) in used.iter().enumerate() {
        found[*column] = matrix[index][size] / matrix[index][index];
    }
    Some(found)
}
