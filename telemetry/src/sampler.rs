//! What is sampled: decided at the root of a trace, and by links where a root has only those.

use std::env;
use std::sync::OnceLock;

use bellwether_schemas::trace::TraceContext;
use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};
use uuid::Uuid;

use crate::context;

/// The sampler of this process, once it was asked for or put in force.
static IN_FORCE: OnceLock<LinkSampler> = OnceLock::new();

/// Samples a root if one of its links is sampled, so that a story that goes on in a trace of
/// its own is not cut; asks the sampler within for everything else.
#[derive(Debug, Clone)]
pub struct LinkSampler(Sampler);

impl Default for LinkSampler {
    /// Around the standard's default: every root, and what has a sampled parent.
    fn default() -> Self {
        Self(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
    }
}

impl LinkSampler {
    /// Around `within`.
    pub fn new(within: Sampler) -> Self {
        Self(within)
    }

    /// As the standard variables `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` say.
    ///
    /// # Errors
    ///
    /// What is wrong with them, for people.
    pub fn from_env() -> Result<Self, String> {
        // An empty variable counts as unset, as the specification says.
        let word = |name| match env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(env::VarError::NotPresent) => Ok(None),
            Err(error @ env::VarError::NotUnicode(_)) => Err(format!("{name}: {error}")),
        };
        let (name, arg) = (
            word("OTEL_TRACES_SAMPLER")?,
            word("OTEL_TRACES_SAMPLER_ARG")?,
        );
        Self::from_words(name.as_deref(), arg.as_deref())
    }

    fn from_words(name: Option<&str>, arg: Option<&str>) -> Result<Self, String> {
        let ratio = || match arg.map(|arg| arg.trim().parse::<f64>()) {
            Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
            _ => Err(format!(
                "OTEL_TRACES_SAMPLER_ARG is {:?} and must be a number from 0 to 1",
                arg.unwrap_or_default()
            )),
        };
        let parent = |root| Sampler::ParentBased(Box::new(root));
        let sampler = match name.unwrap_or("parentbased_always_on") {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(ratio()?),
            "parentbased_always_on" => parent(Sampler::AlwaysOn),
            "parentbased_always_off" => parent(Sampler::AlwaysOff),
            "parentbased_traceidratio" => parent(Sampler::TraceIdRatioBased(ratio()?)),
            other => {
                return Err(format!(
                    "OTEL_TRACES_SAMPLER is {other:?}; known are always_on, always_off, \
                     traceidratio, parentbased_always_on, parentbased_always_off and \
                     parentbased_traceidratio"
                ));
            }
        };
        Ok(Self(sampler))
    }

    /// Lets it decide for [`root`], and so for all work that this process asks for or plans
    /// outside of a caller's trace. A program with a tracer provider of its own calls it with
    /// the sampler of that, before it starts or asks for anything; [`init`](crate::init) does
    /// it by itself. The first one stays: false = another one, or that of the variables, is in
    /// force already.
    pub fn put_in_force(&self) -> bool {
        IN_FORCE.set(self.clone()).is_ok()
    }

    fn mark(&self, root: TraceContext) -> TraceContext {
        let Some(context) = context::remote(&root) else {
            return root;
        };
        let decided = self.should_sample(
            None,
            context.trace_id(),
            "fire",
            &SpanKind::Internal,
            &[],
            &[],
        );
        if decided.decision == SamplingDecision::RecordAndSample {
            return root;
        }
        let unsampled = root.traceparent.strip_suffix("-01");
        match unsampled.map(|start| format!("{start}-00")) {
            Some(traceparent) => TraceContext {
                traceparent,
                ..root
            },
            None => root,
        }
    }
}

impl ShouldSample for LinkSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self
            .0
            .should_sample(parent, trace_id, name, kind, attributes, links);
        let is_root = parent.is_none_or(|parent| !parent.span().span_context().is_valid());
        let off = matches!(self.0, Sampler::AlwaysOff);
        if is_root && !off && links.iter().any(|link| link.span_context.is_sampled()) {
            result.decision = SamplingDecision::RecordAndSample;
        }
        result
    }
}

/// The context that a new fire's row gets: derived from its id, sampled as this process's
/// sampler says: the one [put in force](LinkSampler::put_in_force), else that of the standard
/// variables, whether or not anything is exported from here. Everything that follows from the
/// fire goes by that flag.
pub fn root(fire_id: Uuid) -> TraceContext {
    let sampler = IN_FORCE.get_or_init(|| {
        LinkSampler::from_env().unwrap_or_else(|error| {
            tracing::error!("wrong OpenTelemetry settings: every trace is sampled: {error}");
            LinkSampler::default()
        })
    });
    sampler.mark(TraceContext::root(fire_id))
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceState};

    use super::*;

    fn link(flags: TraceFlags) -> Link {
        let state = TraceState::default();
        let to = SpanContext::new(TraceId::from(1), SpanId::from(1), flags, true, state);
        Link::with_context(to)
    }

    fn decides(sampler: &LinkSampler, parent: Option<&Context>, links: &[Link]) -> bool {
        let kind = SpanKind::Consumer;
        let result = sampler.should_sample(parent, TraceId::from(2), "x", &kind, &[], links);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn a_root_goes_by_its_links_and_a_child_by_its_parent() {
        let none = LinkSampler::from_words(Some("parentbased_traceidratio"), Some("0")).unwrap();
        let (on, off) = (link(TraceFlags::SAMPLED), link(TraceFlags::default()));
        assert!(decides(&none, None, std::slice::from_ref(&on)));
        assert!(!decides(&none, None, &[off]));
        assert!(!decides(&none, None, &[]));
        let unsampled =
            Context::new().with_remote_span_context(link(TraceFlags::default()).span_context);
        assert!(!decides(&none, Some(&unsampled), std::slice::from_ref(&on)));
        let never = LinkSampler::from_words(Some("always_off"), None).unwrap();
        assert!(!decides(&never, None, &[on]));
        assert!(decides(
            &LinkSampler::from_words(None, None).unwrap(),
            None,
            &[]
        ));
    }

    #[test]
    fn a_fires_row_carries_what_its_root_span_will_decide() {
        let half = LinkSampler::from_words(Some("parentbased_traceidratio"), Some("0.5")).unwrap();
        let (mut sampled, mut all) = (0, 0);
        for seed in 0..400 {
            let root = half.mark(TraceContext::root(Uuid::from_u128(seed)));
            let context = context::remote(&root).unwrap();
            let decided =
                half.should_sample(None, context.trace_id(), "f", &SpanKind::Internal, &[], &[]);
            let is_sampled = decided.decision == SamplingDecision::RecordAndSample;
            assert_eq!(context.is_sampled(), is_sampled);
            sampled += u32::from(is_sampled);
            all += 1;
        }
        assert!((100..=300).contains(&sampled), "{sampled} of {all}");
    }

    #[test]
    fn wrong_words_are_told() {
        for (name, arg, said) in [
            ("sometimes", None, "known are always_on"),
            ("traceidratio", None, "from 0 to 1"),
            ("parentbased_traceidratio", Some("7"), "from 0 to 1"),
        ] {
            let error = LinkSampler::from_words(Some(name), arg).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
