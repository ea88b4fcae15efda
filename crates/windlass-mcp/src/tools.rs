//! The tools of servers as an agent's: filtered, named, and under the user's policy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use serde_json::Value;
use windlass::core::Question;
use windlass::core::schema::Shape;
use windlass::tool::{Receipts, Reconciled, Schemas, Scope, SourceRequest, SourcedTools, ToolSource};
use windlass::{RunContext, Tool, ToolContext};

use crate::client::{Answers, Caller, Connection, Listing, TaskSupport, ToolInfo, call, given, kept};
use crate::names::{self, Naming};
use crate::policy::{Approve, Filter, effect, passes};
use crate::schema;
use crate::servers::{Servers, Strictness};

/// How many lists are kept: different agents and contexts may see different ones.
const KEPT: usize = 8;

/// The tools of some servers, for agents with context `C`.
pub struct McpTools<C = ()> {
    servers: Servers,
    naming: Naming,
    approve: Approve<C>,
    approve_for: BTreeMap<String, Approve<C>>,
    filters: Vec<Filter<C>>,
    answers: Option<Answers<C>>,
    known: Mutex<VecDeque<Known<C>>>,
}

/// A list that was made, and what it was made of.
struct Known<C> {
    made_of: MadeOf,
    sourced: SourcedTools<C>,
}

struct MadeOf {
    listings: Vec<Option<Arc<Listing>>>,
    visible: Vec<bool>,
    taken: BTreeSet<Arc<str>>,
    warnings: Vec<String>,
}

impl<C> McpTools<C> {
    pub(crate) fn new(servers: Servers) -> Self {
        Self {
            servers,
            naming: Naming::Plain,
            approve: Approve::Hints,
            approve_for: BTreeMap::new(),
            filters: Vec::new(),
            answers: None,
            known: Mutex::default(),
        }
    }

    /// How the tools are named to models.
    #[must_use]
    pub fn naming(mut self, naming: Naming) -> Self {
        self.naming = naming;
        self
    }

    /// When a person decides about calls. Without this: always, unless a trusted server says that a tool is harmless.
    #[must_use]
    pub fn approve(mut self, policy: Approve<C>) -> Self {
        self.approve = policy;
        self
    }

    /// The same for one server.
    #[must_use]
    pub fn approve_for(mut self, server: &str, policy: Approve<C>) -> Self {
        self.approve_for.insert(server.to_owned(), policy);
        self
    }
}

impl<C: Send + Sync + 'static> McpTools<C> {
    /// Only tools that the function lets through, asked for every turn. One that panics hides the tool.
    #[must_use]
    pub fn filter(self, filter: impl Fn(&RunContext<C>, &ToolInfo) -> bool + Send + Sync + 'static) -> Self {
        self.filter_boxed(Arc::new(move |ctx, tool| std::future::ready(Ok(filter(ctx, tool))).boxed()))
    }

    /// As [`McpTools::filter`], with an async function that may fail, which hides the tool.
    #[must_use]
    pub fn filter_when<Fut, E>(
        self,
        filter: impl Fn(RunContext<C>, ToolInfo) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<bool, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.filter_boxed(Arc::new(move |ctx, tool| {
            let answer = filter(ctx.clone(), tool.clone());
            async move { answer.await.map_err(|error| error.to_string()) }.boxed()
        }))
    }

    /// Answers questions of servers at once, while their call is open. Without this, and where the function has no
    /// answer, the run waits for a person.
    #[must_use]
    pub fn answer_questions<Fut>(
        mut self,
        answer: impl Fn(ToolContext<C>, Question) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Option<Value>> + Send + 'static,
    {
        self.answers = Some(Arc::new(move |ctx, question| answer(ctx, question).boxed()));
        self
    }

    fn filter_boxed(mut self, filter: Filter<C>) -> Self {
        self.filters.push(filter);
        self
    }

    async fn resolve(&self, asked: SourceRequest<'_, C>) -> Result<SourcedTools<C>, String> {
        let connections = self.servers.connections();
        let mut warnings = Vec::new();
        let mut listings = Vec::with_capacity(connections.len());
        for (connection, listing) in
            connections.iter().zip(join_all(connections.iter().map(|each| each.listing())).await)
        {
            listings.push(match listing {
                Ok(listing) => Some(listing),
                Err(why) => {
                    let warning = format!("MCP server `{}` is not there: {why}", connection.config.name());
                    match self.servers.strictness() {
                        Strictness::Strict => return Err(warning),
                        Strictness::Lenient => warnings.push(warning),
                    }
                    None
                }
            });
        }
        let mut visible = Vec::new();
        for tool in listings.iter().flatten().flat_map(|listing| &listing.tools) {
            visible.push(self.is_visible(asked.ctx, tool, &mut warnings).await);
        }
        let made_of = MadeOf { listings, visible, taken: asked.taken.clone(), warnings };
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known().iter().find(|known| known.made_of.is(&made_of)) {
            return Ok(same.sourced.clone());
        }
        let sourced = self.make(&made_of);
        let mut known = known();
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back(Known { made_of, sourced: sourced.clone() });
        Ok(sourced)
    }

    async fn is_visible(&self, ctx: &RunContext<C>, tool: &ToolInfo, warnings: &mut Vec<String>) -> bool {
        for filter in &self.filters {
            match passes(filter, ctx, tool).await {
                Ok(true) => {}
                Ok(false) => return false,
                Err(why) => {
                    warnings.push(format!(
                        "tool `{}` of MCP server `{}` is hidden, because a filter failed: {why}",
                        tool.name, tool.server
                    ));
                    return false;
                }
            }
        }
        true
    }

    fn make(&self, made_of: &MadeOf) -> SourcedTools<C> {
        let mut warnings = made_of.warnings.clone();
        let mut chosen: Vec<(&Arc<Connection>, &Arc<ToolInfo>, TaskSupport)> = Vec::new();
        let mut visible = made_of.visible.iter();
        for (connection, listing) in self.servers.connections().iter().zip(&made_of.listings) {
            let Some(listing) = listing else { continue };
            warnings.extend(listing.warnings.iter().cloned());
            for tool in &listing.tools {
                if visible.next() == Some(&true) {
                    chosen.push((connection, tool, listing.tasks));
                }
            }
        }
        let identities: Vec<(&str, &str)> =
            chosen.iter().map(|(_, tool, _)| (&*tool.server, &*tool.name)).collect();
        let (names, about_names) = names::assign(&identities, &made_of.taken, self.naming);
        warnings.extend(about_names);
        let tools = chosen.iter().zip(names).filter_map(|((connection, tool, tasks), name)| {
            Some(Arc::new(self.wrap(connection, tool, *tasks, &name?)))
        });
        SourcedTools { tools: tools.collect(), warnings: warnings.into() }
    }

    fn wrap(
        &self,
        connection: &Arc<Connection>,
        info: &Arc<ToolInfo>,
        tasks: TaskSupport,
        name: &str,
    ) -> Tool<C> {
        let trust = connection.config.trust;
        let effect = effect(info, trust);
        let schemas =
            Schemas { offered: info.input_schema.clone(), checked: schema::checkable(&info.input_schema) };
        let expected =
            info.output_schema.as_ref().map(|promised| Arc::new(Shape::new(schema::checkable(promised))));
        let within = (tasks == TaskSupport::Yes).then_some(connection.config.call_timeout);
        let body = {
            let shared = (connection.clone(), info.clone(), self.answers.clone(), expected);
            move |ctx, arguments| {
                let (connection, info, answers, expected) = shared.clone();
                async move {
                    let caller = Caller { ctx: &ctx, answers: answers.as_ref(), within };
                    let result = call(&connection, &info, effect, &caller, arguments).await?;
                    given(result, expected.as_deref())
                }
            }
        };
        let tool = Tool::dynamic_with(name, &info.description, schemas, body)
            .non_strict()
            .of_mcp_server(&info.server, &info.name)
            .effect(effect)
            // The same arguments later may well mean another result: a server promises that doing it again does no
            // harm, and not that it is of no use.
            .receipts(Receipts { scope: Scope::Call, expire_after: None })
            // The body that finds a task does not call again, but goes on with it.
            .reconcile(|ctx| async move {
                match kept(&ctx).await {
                    Ok(Some(_)) => Reconciled::DidNotHappen,
                    Ok(None) | Err(_) => Reconciled::Unknown,
                }
            });
        let config = &connection.config;
        let tool = tool.timeout(match tasks {
            TaskSupport::No => config.call_timeout,
            // Its own deadlines come first, and tell the server which of the two it was.
            TaskSupport::Yes => config.call_timeout.saturating_add(config.task_timeout),
        });
        self.approve_for.get(&*info.server).unwrap_or(&self.approve).put_on(tool, info, trust)
    }
}

impl<C: Send + Sync + 'static> ToolSource<C> for McpTools<C> {
    fn tools<'a>(&'a self, asked: SourceRequest<'a, C>) -> BoxFuture<'a, Result<SourcedTools<C>, String>> {
        self.resolve(asked).boxed()
    }
}

impl MadeOf {
    fn is(&self, other: &Self) -> bool {
        let same = |pair: (&Option<Arc<Listing>>, &Option<Arc<Listing>>)| match pair {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.listings.iter().zip(&other.listings).all(same)
            && self.visible == other.visible
            && self.taken == other.taken
            && self.warnings == other.warnings
    }
}
