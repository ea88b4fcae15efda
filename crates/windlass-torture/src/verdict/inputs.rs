//! Input that was ordered for a run: none is missing.

use std::io;

use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::files::{RoundFolder, read_lines};
use crate::order::OrderedInput;

/// Checks that every ordered input is in the journal of its run, unless the run may have ended before a driver knew of
/// it.
pub(super) fn check_inputs(
    evidence: &RoundEvidence,
    folder: &RoundFolder,
    verdict: &mut TortureVerdict,
) -> io::Result<()> {
    for input in read_lines::<OrderedInput>(&folder.ordered_inputs())? {
        if is_missing(evidence, &input) {
            let what =
                format!("{}: the input of order {} is not there: {:?}", input.run, input.order, input.text);
            report_violation(&mut verdict.lost, "lost", what);
        }
    }
    Ok(())
}

/// Returns true if a driver that knew of the order has got a response from the model, and the journal lacks the input.
///
/// The next driver may have been given the run before the order was posted. The one after it was given the run after
/// the next one had left it. A fork has the epochs of its origin in its journal, and proves nothing.
fn is_missing(evidence: &RoundEvidence, input: &OrderedInput) -> bool {
    let is_fork = evidence.orders.get(&input.run).is_none_or(|order| order.fork_of.is_some());
    let Some(journal) = evidence.journals.get(&input.run).filter(|_| !is_fork) else { return false };
    journal.responded_epoch >= input.epoch + 2 && !journal.added_inputs.contains_key(&input.text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::order::RunOrder;
    use crate::verdict::RunJournal;

    fn evidence(fork_of: Option<&str>, responded_epoch: u64, added: &[u64]) -> RoundEvidence {
        let (run, fork_of) = ("run".to_owned(), fork_of.map(str::to_owned));
        let (session, has_session_key, is_cancelled) = (None, false, false);
        let order = RunOrder { run, seed: 1, session, has_session_key, fork_of, is_cancelled };
        let added_inputs = added.iter().map(|order| (format!("point {order}"), 1)).collect();
        let journal = RunJournal { added_inputs, responded_epoch, ..RunJournal::default() };
        RoundEvidence {
            orders: BTreeMap::from([("run".to_owned(), order)]),
            journals: BTreeMap::from([("run".to_owned(), journal)]),
        }
    }

    #[test]
    fn input_is_missing_if_a_driver_that_knew_of_it_went_on_without() {
        let input = OrderedInput { run: "run".to_owned(), order: 7, text: "point 7".to_owned(), epoch: 3 };
        assert!(is_missing(&evidence(None, 5, &[6]), &input));
        assert!(!is_missing(&evidence(None, 5, &[7]), &input), "it is there");
        assert!(!is_missing(&evidence(None, 4, &[]), &input), "nobody may have known of it");
        assert!(!is_missing(&evidence(Some("origin"), 5, &[]), &input), "a fork proves nothing");
    }
}
