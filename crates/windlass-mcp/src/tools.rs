//! The tools of MCP servers as an agent's tools: filtered, named, and under the user's approval policy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use windlass::core::decision::PersonQuestion;
use windlass::core::schema::CompiledSchema;
use windlass::tool::{
    DynamicToolSchemas, ReceiptPolicy, ReceiptScope, ReconcileOutcome, SourcedTools, ToolSource,
    ToolSourceRequest,
};
use windlass::tool::{RunContext, Tool, ToolContext};

use crate::client::{
    ElicitationAnswer, ElicitationHandler, McpCallContext, McpConnection, McpToolInfo, TaskSupport,
    ToolListing, authorisation_allowance, call_tool, convert_result, load_task_id,
};
use crate::names::{self, ToolNaming};
use crate::policy::{McpApprovalPolicy, McpToolFilter, declared_effect, evaluate_filter};
use crate::schema;
use crate::servers::{McpConnections, MissingServerPolicy};

/// Maximum number of cached tool sets; different agents and contexts may see different sets.
const MAX_CACHED_SETS: usize = 8;

/// A tool source with the tools of MCP servers, for agents with context `C`.
pub struct McpTools<C = ()> {
    servers: McpConnections,
    naming: ToolNaming,
    approve: McpApprovalPolicy<C>,
    approve_for: BTreeMap<String, McpApprovalPolicy<C>>,
    filters: Vec<McpToolFilter<C>>,
    elicitation_handler: Option<ElicitationHandler<C>>,
    cache: Mutex<VecDeque<CachedToolSet<C>>>,
}

/// A tool set and the inputs that it was built from.
struct CachedToolSet<C> {
    key: ToolSetCacheKey,
    tools: SourcedTools<C>,
}

/// The inputs of a tool set; equal inputs produce the same tools.
struct ToolSetCacheKey {
    listings: Vec<Option<Arc<ToolListing>>>,
    visible: Vec<bool>,
    taken_names: BTreeSet<Arc<str>>,
    warnings: Vec<String>,
}

impl<C> McpTools<C> {
    pub(crate) fn new(servers: McpConnections) -> Self {
        Self {
            servers,
            naming: ToolNaming::Plain,
            approve: McpApprovalPolicy::ByHints,
            approve_for: BTreeMap::new(),
            filters: Vec::new(),
            elicitation_handler: None,
            cache: Mutex::default(),
        }
    }

    /// Sets the naming scheme of the tools.
    #[must_use]
    pub fn naming(mut self, naming: ToolNaming) -> Self {
        self.naming = naming;
        self
    }

    /// Sets the approval policy. Default: [`McpApprovalPolicy::ByHints`](crate::McpApprovalPolicy::ByHints), which
    /// requires approval unless a trusted server declares the tool harmless.
    #[must_use]
    pub fn approve(mut self, policy: McpApprovalPolicy<C>) -> Self {
        self.approve = policy;
        self
    }

    /// Sets the approval policy of one server.
    #[must_use]
    pub fn approve_for(mut self, server: &str, policy: McpApprovalPolicy<C>) -> Self {
        self.approve_for.insert(server.to_owned(), policy);
        self
    }
}

impl<C: Send + Sync + 'static> McpTools<C> {
    /// Offers only the tools that the function accepts. It is evaluated in every turn; a panic hides the tool.
    #[must_use]
    pub fn filter(
        self,
        filter: impl Fn(&RunContext<C>, &McpToolInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.push_filter(Arc::new(move |ctx, tool| std::future::ready(Ok(filter(ctx, tool))).boxed()))
    }

    /// Adds an async filter, as [`McpTools::filter`]; an error or a panic hides the tool.
    #[must_use]
    pub fn filter_async<Fut, E>(
        self,
        filter: impl Fn(RunContext<C>, McpToolInfo) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<bool, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.push_filter(Arc::new(move |ctx, tool| {
            let answer = filter(ctx.clone(), tool.clone());
            async move { answer.await.map_err(|error| error.to_string()) }.boxed()
        }))
    }

    /// Sets a function that answers elicitations of servers while their call is open. Without it, or if it returns
    /// `None`, the run pauses until a person answers; the answer `null` declines.
    #[must_use]
    pub fn on_elicitation<Fut>(
        mut self,
        answer: impl Fn(ToolContext<C>, PersonQuestion) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Option<ElicitationAnswer>> + Send + 'static,
    {
        self.elicitation_handler = Some(Arc::new(move |ctx, question| answer(ctx, question).boxed()));
        self
    }

    fn push_filter(mut self, filter: McpToolFilter<C>) -> Self {
        self.filters.push(filter);
        self
    }

    async fn resolve_tools(&self, asked: ToolSourceRequest<'_, C>) -> Result<SourcedTools<C>, String> {
        let connections = self.servers.connections();
        let mut warnings = Vec::new();
        let mut listings = Vec::with_capacity(connections.len());
        for (connection, listing) in
            connections.iter().zip(join_all(connections.iter().map(|each| each.tool_listing())).await)
        {
            listings.push(match listing {
                Ok(listing) => Some(listing),
                Err(why) => {
                    let warning = format!("MCP server `{}` is unavailable: {why}", connection.config.name());
                    match self.servers.missing_server_policy() {
                        MissingServerPolicy::Fail => return Err(warning),
                        MissingServerPolicy::Warn => warnings.push(warning),
                    }
                    None
                }
            });
        }
        let mut visible = Vec::new();
        for tool in listings.iter().flatten().flat_map(|listing| &listing.tools) {
            visible.push(self.is_visible(asked.ctx, tool, &mut warnings).await);
        }
        let made_of = ToolSetCacheKey { listings, visible, taken_names: asked.taken_names.clone(), warnings };
        let known = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known().iter().find(|known| known.key.is_same(&made_of)) {
            return Ok(same.tools.clone());
        }
        let sourced = self.build_tools(&made_of);
        let mut known = known();
        if known.len() == MAX_CACHED_SETS {
            known.pop_front();
        }
        known.push_back(CachedToolSet { key: made_of, tools: sourced.clone() });
        Ok(sourced)
    }

    async fn is_visible(&self, ctx: &RunContext<C>, tool: &McpToolInfo, warnings: &mut Vec<String>) -> bool {
        for filter in &self.filters {
            match evaluate_filter(filter, ctx, tool).await {
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

    fn build_tools(&self, made_of: &ToolSetCacheKey) -> SourcedTools<C> {
        let mut warnings = made_of.warnings.clone();
        let mut chosen: Vec<(&Arc<McpConnection>, &Arc<McpToolInfo>, TaskSupport)> = Vec::new();
        let mut visible = made_of.visible.iter();
        for (connection, listing) in self.servers.connections().iter().zip(&made_of.listings) {
            let Some(listing) = listing else { continue };
            warnings.extend(listing.warnings.iter().cloned());
            for tool in &listing.tools {
                if visible.next() == Some(&true) {
                    chosen.push((connection, tool, listing.task_support));
                }
            }
        }
        let identities: Vec<(&str, &str)> =
            chosen.iter().map(|(_, tool, _)| (&*tool.server, &*tool.name)).collect();
        let (names, about_names) = names::assign_names(&identities, &made_of.taken_names, self.naming);
        warnings.extend(about_names);
        let tools = chosen.iter().zip(names).filter_map(|((connection, tool, tasks), name)| {
            Some(Arc::new(self.build_tool(connection, tool, *tasks, &name?)))
        });
        SourcedTools { tools: tools.collect(), warnings: warnings.into() }
    }

    fn build_tool(
        &self,
        connection: &Arc<McpConnection>,
        info: &Arc<McpToolInfo>,
        tasks: TaskSupport,
        name: &str,
    ) -> Tool<C> {
        let trust = connection.config.trust;
        let effect = declared_effect(info, trust);
        let schemas = DynamicToolSchemas {
            model_schema: info.input_schema.clone(),
            validation_schema: schema::checkable_schema(&info.input_schema),
        };
        let expected = info
            .output_schema
            .as_ref()
            .map(|promised| Arc::new(CompiledSchema::new(schema::checkable_schema(promised))));
        let config = &connection.config;
        let limits_itself = tasks == TaskSupport::Supported || config.uses_oauth();
        let within = limits_itself.then_some(config.call_timeout);
        let body = {
            let shared = (connection.clone(), info.clone(), self.elicitation_handler.clone(), expected);
            move |ctx, arguments| {
                let (connection, info, answers, expected) = shared.clone();
                async move {
                    let caller = McpCallContext {
                        ctx: &ctx,
                        elicitation_handler: answers.as_ref(),
                        response_timeout: within,
                        effect,
                    };
                    let result = call_tool(&connection, &info, &caller, arguments).await?;
                    convert_result(result, expected.as_deref())
                }
            }
        };
        let tool = Tool::dynamic_with_schemas(name, &info.description, schemas, body)
            .non_strict()
            .mcp_identity(&info.server, &info.name)
            .mcp_annotations(&format!("{:?} {:?} {:?}", info.title, info.hints, info.output_schema))
            .effect(effect)
            // Receipts are limited to one call: an idempotent tool may be called again safely, but the same
            // arguments can return another result later.
            .receipt_policy(ReceiptPolicy { scope: ReceiptScope::Call, expire_after: None })
            // If the call became a task, running the body again is safe: it resumes the task instead of calling.
            .reconcile(|ctx| async move {
                match load_task_id(&ctx).await {
                    Ok(Some(_)) => ReconcileOutcome::NotExecuted,
                    Ok(None) | Err(_) => ReconcileOutcome::Unknown,
                }
            });
        // The timeouts of the call, of its task and of an authorisation fire first, and their messages say which.
        let mut timeout = config.call_timeout;
        if tasks == TaskSupport::Supported {
            timeout = timeout.saturating_add(config.task_timeout);
        }
        if config.uses_oauth() {
            timeout = timeout.saturating_add(authorisation_allowance(config.connect_timeout));
        }
        let tool = tool.timeout(timeout);
        let tool = if config.has_deferred_tools { tool.deferred() } else { tool };
        self.approve_for.get(&*info.server).unwrap_or(&self.approve).apply_to(tool, info, trust)
    }
}

impl<C: Send + Sync + 'static> ToolSource<C> for McpTools<C> {
    fn list_tools<'a>(
        &'a self,
        asked: ToolSourceRequest<'a, C>,
    ) -> BoxFuture<'a, Result<SourcedTools<C>, String>> {
        self.resolve_tools(asked).boxed()
    }

    fn may_have_secrets(&self) -> bool {
        false
    }
}

impl ToolSetCacheKey {
    fn is_same(&self, other: &Self) -> bool {
        let same = |pair: (&Option<Arc<ToolListing>>, &Option<Arc<ToolListing>>)| match pair {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.listings.iter().zip(&other.listings).all(same)
            && self.visible == other.visible
            && self.taken_names == other.taken_names
            && self.warnings == other.warnings
    }
}
