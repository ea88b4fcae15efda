//! An order with twenty fields: the arguments that reading is measured with.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::{Tool, ToolContext, ToolError};

/// A place on a map.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Geo {
    pub lat: f64,
    pub lon: f64,
}

/// Where somebody lives.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Address {
    pub street: String,
    pub city: String,
    pub zip: String,
    pub country: String,
    pub geo: Geo,
}

/// A name and a value.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Pair {
    pub k: String,
    pub v: String,
}

/// A line of an order.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Position {
    pub sku: String,
    pub qty: i64,
    pub unit_price: f64,
    pub attrs: Vec<Pair>,
}

/// How somebody pays.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the words")]
pub enum Method {
    Card,
    Sepa,
    Paypal,
}

/// A payment.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Payment {
    pub method: Method,
    pub last4: String,
    pub exp_month: i64,
    pub exp_year: i64,
}

/// How an order travels.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Shipping {
    pub carrier: String,
    pub service: String,
    pub cost: f64,
    pub insured: bool,
}

/// A currency.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the words")]
pub enum Currency {
    Eur,
    Usd,
    Gbp,
}

/// An order.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the words")]
pub struct Order {
    pub id: String,
    pub customer_name: String,
    pub email: String,
    pub age: i64,
    pub vip: bool,
    pub score: f64,
    pub currency: Currency,
    pub created_at: String,
    pub tags: Vec<String>,
    pub notes: Option<String>,
    pub discount_pct: f64,
    pub priority: i64,
    pub address: Address,
    pub billing: Address,
    pub items: Vec<Position>,
    pub payment: Payment,
    pub shipping: Shipping,
    pub flags: Vec<String>,
    pub retries: i64,
    pub metadata: Vec<Pair>,
}

/// An order, for cases that bring none.
pub const ORDER: &str = r#"{"id":"ord_000123","customer_name":"Grace Hopper","email":"grace@example.com","age":41,"vip":true,"score":97.25,"currency":"USD","created_at":"2026-01-02T03:04:05Z","tags":["alpha","beta","gamma"],"notes":null,"discount_pct":12.5,"priority":3,"address":{"street":"1 Compiler Way","city":"New York","zip":"10001","country":"US","geo":{"lat":40.7484,"lon":-73.9857}},"billing":{"street":"2 Flow Street","city":"Arlington","zip":"22201","country":"US","geo":{"lat":38.8816,"lon":-77.091}},"items":[{"sku":"SKU-1","qty":2,"unit_price":19.99,"attrs":[{"k":"color","v":"red"},{"k":"size","v":"L"}]},{"sku":"SKU-2","qty":1,"unit_price":249.0,"attrs":[{"k":"color","v":"black"}]},{"sku":"SKU-3","qty":12,"unit_price":0.75,"attrs":[]}],"payment":{"method":"card","last4":"4242","exp_month":12,"exp_year":2030},"shipping":{"carrier":"DHL","service":"express","cost":14.5,"insured":true},"flags":["gift","fragile"],"retries":2,"metadata":[{"k":"source","v":"web"},{"k":"campaign","v":"spring"},{"k":"ab","v":"B"},{"k":"ref","v":"newsletter-42"}]}"#;

/// A tool that takes an order.
pub fn tool() -> Tool {
    Tool::function("order", "Places an order.", |_: ToolContext, _: Order| async { Ok::<_, ToolError>("ok") })
}

/// Reads an order so many times, as a call would.
pub fn read(times: usize) -> Result<usize, String> {
    let tool = tool();
    for _ in 0..times {
        tool.check(std::hint::black_box(ORDER))?;
    }
    Ok(times)
}
