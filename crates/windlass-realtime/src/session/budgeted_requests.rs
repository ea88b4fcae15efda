//! Model requests of the agents that calls run, reserved in the budget of the session before they are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use windlass::core::budget::{BudgetSpending, ReachedBudget};
use windlass::core::id::CallId;
use windlass::core::usage::Usage;
use windlass::model::{DeltaSink, ModelError, ModelLayer, ModelRequest, ModelResponse, NextModel};
use windlass::price::PriceList;

/// Bytes of a token of text, for estimates.
const BYTES_PER_TOKEN: u64 = 4;

/// Maximum number of open model requests inside calls; further ones wait.
const MAX_OPEN_REQUESTS: usize = 256;

/// A message about a model request inside a call.
pub(super) enum RequestNotice {
    /// It is about to be sent.
    Reserve { request: CallId, estimate: BudgetSpending, reply: oneshot::Sender<Result<(), ReachedBudget>> },
    /// It was answered, has failed, or nobody waits for it any more.
    Ended { request: CallId, usage: Usage, permit: OwnedSemaphorePermit },
}

/// The layer that reserves each model request in the budget of the session.
#[derive(Clone)]
pub(super) struct BudgetedRequests {
    notices: mpsc::Sender<RequestNotice>,
    /// Permits of open requests. Each has room for its two notices.
    permits: Arc<Semaphore>,
    pub(super) prices: Arc<PriceList>,
    count: Arc<AtomicU64>,
}

impl BudgetedRequests {
    /// Creates the layer, and the receiver of its notices.
    pub(super) fn new(prices: Arc<PriceList>) -> (Self, mpsc::Receiver<RequestNotice>) {
        let (notices, receiver) = mpsc::channel(2 * MAX_OPEN_REQUESTS);
        let permits = Arc::new(Semaphore::new(MAX_OPEN_REQUESTS));
        (Self { notices, permits, prices, count: Arc::default() }, receiver)
    }
}

/// A request that is reported as ended when it is dropped.
struct OpenRequest<'a> {
    layer: &'a BudgetedRequests,
    request: CallId,
    usage: Usage,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let (request, usage) = (self.request.clone(), self.usage);
        // The permit says that there is room.
        let _ = self.layer.notices.try_send(RequestNotice::Ended { request, usage, permit });
    }
}

impl ModelLayer for BudgetedRequests {
    fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
        next: NextModel<'a>,
    ) -> BoxFuture<'a, Result<ModelResponse, ModelError>> {
        async move {
            let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
            let id = CallId::from(format!("{}_request_{number}", request.agent));
            let (reply, admitted) = oneshot::channel();
            let estimate = estimate_request(&request);
            let notice = RequestNotice::Reserve { request: id.clone(), estimate, reply };
            let ended = || ModelError::new("the session has ended");
            let permit = Some(self.permits.clone().acquire_owned().await.map_err(|_| ended())?);
            let mut open = OpenRequest { layer: self, request: id, usage: Usage::default(), permit };
            self.notices.send(notice).await.map_err(|_| ended())?;
            admitted.await.map_err(|_| ended())?.map_err(|reached| ModelError::new(reached.to_string()))?;
            open.usage = Usage::of_unknown_request();
            let answered = next.respond(request, deltas).await;
            let usage = match &answered {
                Ok(response) => response.usage,
                Err(error) => error.usage().copied(),
            };
            if let Some(mut usage) = usage {
                let model = answered.as_ref().ok().and_then(|response| response.model.as_deref());
                self.prices.complete_usage(&mut usage, model);
                open.usage = usage;
            }
            answered
        }
        .boxed()
    }
}

/// Estimates a request by the length of its input and the longest output that it asks for.
fn estimate_request(request: &ModelRequest<'_>) -> BudgetSpending {
    let lengths = request.input.iter().map(|item| serde_json::to_string(item).map_or(0, |text| text.len()));
    let bytes = request.instructions.map_or(0, str::len) + lengths.sum::<usize>();
    let output = request.settings.max_tokens.unwrap_or(0);
    BudgetSpending {
        requests: 1,
        tokens: (bytes as u64 / BYTES_PER_TOKEN).saturating_add(output),
        ..BudgetSpending::default()
    }
}

/// Waits for the next notice; `None` if the session has no budget or no notice can come any more.
pub(super) async fn next_request_notice(
    notices: &mut Option<mpsc::Receiver<RequestNotice>>,
) -> Option<RequestNotice> {
    notices.as_mut()?.recv().await
}
