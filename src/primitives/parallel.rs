//! Independent tasks, on threads where the feature `parallel` is on. What a task computes never
//! depends on where it runs, so results are the same either way.

/// Runs `work` on every task.
#[cfg(feature = "parallel")]
pub fn for_each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Sync + Send) {
    use rayon::prelude::*;
    tasks.into_par_iter().for_each(work);
}

/// Runs `work` on every task.
#[cfg(not(feature = "parallel"))]
pub fn for_each<T: Send>(tasks: Vec<T>, work: impl Fn(T) + Sync + Send) {
    tasks.into_iter().for_each(work);
}

/// Runs `work` on every task and returns the first error by the order of the tasks.
///
/// # Errors
/// What `work` returns.
pub fn try_for_each<T: Send, E: Send>(
    tasks: Vec<T>,
    work: impl Fn(T) -> Result<(), E> + Sync + Send,
) -> Result<(), E> {
    map(tasks, work).into_iter().collect()
}

/// Runs `work` on every task and returns the answers in the order of the tasks.
#[cfg(feature = "parallel")]
pub fn map<T: Send, R: Send>(tasks: Vec<T>, work: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    use rayon::prelude::*;
    tasks.into_par_iter().map(work).collect()
}

/// Runs `work` on every task and returns the answers in the order of the tasks.
#[cfg(not(feature = "parallel"))]
pub fn map<T: Send, R: Send>(tasks: Vec<T>, work: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    tasks.into_iter().map(work).collect()
}

/// Cuts a slice into consecutive parts of the given lengths.
///
/// # Panics
/// When the lengths add up to more than the slice holds.
pub fn split<T>(mut rest: &mut [T], lengths: impl IntoIterator<Item = usize>) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    for length in lengths {
        let (part, tail) = rest.split_at_mut(length);
        parts.push(part);
        rest = tail;
    }
    parts
}
