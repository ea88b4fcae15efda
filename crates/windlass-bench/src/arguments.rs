//! An order with twenty fields: the arguments with which argument checking is measured.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::tool::{Tool, ToolContext, ToolError};

/// A place on a map.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct GeoPoint {
    pub lat: f64,
    pub lon: f64,
}

/// A postal address.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct PostalAddress {
    pub street: String,
    pub city: String,
    pub zip: String,
    pub country: String,
    pub geo: GeoPoint,
}

/// A name and a value.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct KeyValuePair {
    pub k: String,
    pub v: String,
}

/// A line of an order.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct OrderLine {
    pub sku: String,
    pub qty: i64,
    pub unit_price: f64,
    pub attrs: Vec<KeyValuePair>,
}

/// A payment method.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the words")]
pub enum PaymentMethod {
    Card,
    Sepa,
    Paypal,
}

/// A payment.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct PaymentDetails {
    pub method: PaymentMethod,
    pub last4: String,
    pub exp_month: i64,
    pub exp_year: i64,
}

/// The shipping of an order.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct ShippingDetails {
    pub carrier: String,
    pub service: String,
    pub cost: f64,
    pub insured: bool,
}

/// A currency.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the words")]
pub enum OrderCurrency {
    Eur,
    Usd,
    Gbp,
}

/// An order.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct OrderArguments {
    pub id: String,
    pub customer_name: String,
    pub email: String,
    pub age: i64,
    pub vip: bool,
    pub score: f64,
    pub currency: OrderCurrency,
    pub created_at: String,
    pub tags: Vec<String>,
    pub notes: Option<String>,
    pub discount_pct: f64,
    pub priority: i64,
    pub address: PostalAddress,
    pub billing: PostalAddress,
    pub items: Vec<OrderLine>,
    pub payment: PaymentDetails,
    pub shipping: ShippingDetails,
    pub flags: Vec<String>,
    pub retries: i64,
    pub metadata: Vec<KeyValuePair>,
}

/// A sample order, for cases without a fixture.
pub const SAMPLE_ORDER: &str = r#"{"id":"ord_000123","customer_name":"Grace Hopper","email":"grace@example.com","age":41,"vip":true,"score":97.25,"currency":"USD","created_at":"2026-01-02T03:04:05Z","tags":["alpha","beta","gamma"],"notes":null,"discount_pct":12.5,"priority":3,"address":{"street":"1 Compiler Way","city":"New York","zip":"10001","country":"US","geo":{"lat":40.7484,"lon":-73.9857}},"billing":{"street":"2 Flow Street","city":"Arlington","zip":"22201","country":"US","geo":{"lat":38.8816,"lon":-77.091}},"items":[{"sku":"SKU-1","qty":2,"unit_price":19.99,"attrs":[{"k":"color","v":"red"},{"k":"size","v":"L"}]},{"sku":"SKU-2","qty":1,"unit_price":249.0,"attrs":[{"k":"color","v":"black"}]},{"sku":"SKU-3","qty":12,"unit_price":0.75,"attrs":[]}],"payment":{"method":"card","last4":"4242","exp_month":12,"exp_year":2030},"shipping":{"carrier":"DHL","service":"express","cost":14.5,"insured":true},"flags":["gift","fragile"],"retries":2,"metadata":[{"k":"source","v":"web"},{"k":"campaign","v":"spring"},{"k":"ab","v":"B"},{"k":"ref","v":"newsletter-42"}]}"#;

/// Creates a tool that takes an order.
pub fn order_tool() -> Tool {
    Tool::function("order", "Places an order.", |_: ToolContext, _: OrderArguments| async {
        Ok::<_, ToolError>("ok")
    })
}

/// Checks the sample order `times` times, as a tool call would.
pub fn check_order(times: usize) -> Result<usize, String> {
    let tool = order_tool();
    for _ in 0..times {
        tool.check_arguments(std::hint::black_box(SAMPLE_ORDER))?;
    }
    Ok(times)
}
