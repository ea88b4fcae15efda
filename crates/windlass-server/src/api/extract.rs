//! Extractors whose rejections are errors of the API.

use std::time::Duration;

use axum::extract::rejection::{BytesRejection, JsonRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode};
use serde::de::DeserializeOwned;
use windlass_text::SafeText;

use super::ApiError;
use crate::access::PersonIdentity;

/// The authenticated person of a request.
pub(crate) struct RequestPerson(pub(crate) PersonIdentity);

impl<S: Send + Sync> FromRequestParts<S> for RequestPerson {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<PersonIdentity>().cloned().map(Self).ok_or_else(ApiError::unauthorized)
    }
}

/// Time that a client has to send the body of a request.
#[derive(Clone, Copy)]
pub(crate) struct BodyTimeout(pub(crate) Duration);

/// Waits for a body. A client that sends it drop by drop does not keep its connection for ever.
async fn in_time<T>(extensions: &Extensions, body: impl Future<Output = T>) -> Result<T, ApiError> {
    let limit = extensions.get::<BodyTimeout>().map_or(Duration::from_secs(60), |timeout| timeout.0);
    tokio::time::timeout(limit, body).await.map_err(|_| {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body did not arrive in time")
    })
}

/// A JSON body. Its content type must be `application/json`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match in_time(&request.extensions().clone(), axum::Json::<T>::from_request(request, state)).await? {
            Ok(axum::Json(body)) => Ok(Self(body)),
            Err(rejection) => {
                let message = SafeText::from_words(&rejection.body_text()).to_string();
                Err(match &rejection {
                    JsonRejection::MissingJsonContentType(_) => {
                        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
                    }
                    JsonRejection::BytesRejection(inner) => bytes_error(inner.status(), message),
                    _ => ApiError::invalid(message),
                })
            }
        }
    }
}

/// A text body.
pub(crate) struct TextBody(pub(crate) String);

impl<S: Send + Sync> FromRequest<S> for TextBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = in_time(&request.extensions().clone(), bytes::Bytes::from_request(request, state))
            .await?
            .map_err(|rejection: BytesRejection| bytes_error(rejection.status(), rejection.body_text()))?;
        String::from_utf8(bytes.into()).map(Self).map_err(|_| ApiError::invalid("the body is not UTF-8 text"))
    }
}

fn bytes_error(status: StatusCode, message: String) -> ApiError {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(status, "body_too_large", "the body is too large"),
        _ => ApiError::invalid(message),
    }
}

/// The query of a request. Unknown parameters are refused by its type.
pub(crate) struct UrlQuery<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for UrlQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                Err(ApiError::invalid(SafeText::from_words(&rejection.body_text()).to_string()))
            }
        }
    }
}

/// The parameters in the path of a request.
pub(crate) struct UrlPath<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for UrlPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(path)) => Ok(Self(path)),
            Err(rejection) => {
                Err(ApiError::invalid(SafeText::from_words(&rejection.body_text()).to_string()))
            }
        }
    }
}

/// Reads a whole number. JSON Schema counts `3.0` as one, too.
pub(super) fn whole_number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: TryFrom<i64>,
{
    let number = optional_whole_number(deserializer)?;
    number.ok_or_else(|| serde::de::Error::custom("a whole number is expected"))
}

/// Reads a whole number, or nothing.
pub(super) fn optional_whole_number<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: TryFrom<i64>,
{
    use serde::Deserialize;
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else { return Ok(None) };
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
        Some(float as i64)
    });
    let fitting = whole.and_then(|whole| T::try_from(whole).ok());
    fitting.map(Some).ok_or_else(|| serde::de::Error::custom("a whole number in range is expected"))
}
