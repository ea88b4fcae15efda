use super::*;

fn message(role: &'static str, text: &str) -> PromptMessage {
    PromptMessage { role, text: text.to_owned() }
}

fn render(source: &str, messages: &[PromptMessage]) -> String {
    ChatTemplate::compile(Some(source), "<s>", "</s>")
        .expect("compiled")
        .render_prompt(messages)
        .expect("rendered")
}

#[test]
fn names_of_tokens_and_flags_are_passed() {
    let source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}\
                  {% if add_generation_prompt %}A{% endif %}{% if not enable_thinking %}<think></think>{% endif %}\
                  {% if tools is none and documents is none %}!{% endif %}";
    assert_eq!(render(source, &[message("user", "hi")]), "<s>hi</s>A<think></think>!");
}

#[test]
fn an_error_is_found_when_the_template_is_loaded() {
    let compile =
        |source: &str| ChatTemplate::compile(Some(source), "", "").map(|_| ()).expect_err("refused");
    assert!(compile("{% for m in messages %}{{ m.content }}").contains("chat template"));
    assert!(compile("{{ messages | no_such_filter }}").contains("no_such_filter"));
    assert!(compile("{{ raise_exception('no conversation will do') }}").contains("no conversation will do"));
    assert!(
        compile("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}")
            .contains("fuel")
    );
}

#[test]
fn the_functions_of_transformers_are_there() {
    let source = "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}\
                  {% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}";
    assert_eq!(render(source, &[message("user", "a"), message("user", "b"), message("assistant", "c")]), "b");
    let tagged = "{% for m in messages %}\n  {%- generation -%}\n {{ m.content }} \n{%- endgeneration %}|\n{% endfor %}";
    let plain = "{% for m in messages %}\n  {%- if true -%}\n {{ m.content }} \n{%- endif %}|\n{% endfor %}";
    assert_eq!(render(tagged, &[message("user", "a")]), render(plain, &[message("user", "a")]));
    let json = "{{ {'name': 'a<b>&\\'é', 'list': [1, 2.5, true, none]} | tojson }}";
    let found = render(json, &[]);
    assert!(found.contains("\"a<b>&'é\"") && found.contains("[1, 2.5, true, null]"), "{found}");
    assert_eq!(render("{{ {'a': [1, 2]} | tojson(indent=2) }}", &[]), "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
    assert!(render("{{ strftime_now('%Y') }}", &[]).parse::<u32>().is_ok_and(|year| year >= 2024));
    let thinking = "{% set last = messages[-1].content.split('</think>')[-1].lstrip('\\n') %}{{ last }}";
    assert_eq!(render(thinking, &[message("user", "<think>x</think>\nyes")]), "yes");
    assert_eq!(
        render(
            "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
            &[message("user", "a"), message("user", "b")]
        ),
        "ba"
    );
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    let source =
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n";
    assert_eq!(render(source, &[message("user", "a"), message("user", "b")]), "a\nb\n");
}

#[test]
fn times_are_formatted() {
    let format = |text: &str, seconds| format_time(text, seconds).expect("known");
    assert_eq!(format("%d %b %Y", 0), "01 Jan 1970");
    assert_eq!(format("%Y-%m-%d %H:%M:%S %A", 951_782_400), "2000-02-29 00:00:00 Tuesday");
    assert_eq!(format("%B %e, %y %I%p %a %%", 1_735_689_599), "December 31, 24 11PM Tue %");
    assert!(format_time("%Q", 0).is_err());
}

/// Templates of Gemma and Mistral refuse a system message and two messages of one role.
#[test]
fn messages_are_fitted_to_the_template() {
    let strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
                  {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
                  {{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let conversation = [
        message("system", "Be kind."),
        message("user", "one"),
        message("user", "two"),
        message("assistant", "three"),
        message("system", "Be brief."),
        message("user", "four"),
    ];
    assert_eq!(
        render(strict, &conversation),
        "[user]Be kind.\n\none\n\ntwo[assistant]three[user]Be brief.\n\nfour"
    );
    let lenient = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_eq!(
        render(lenient, &conversation),
        "[system]Be kind.[user]one[user]two[assistant]three[system]Be brief.[user]four"
    );
}

#[test]
fn a_file_without_a_template_uses_chat_ml() {
    let template = ChatTemplate::compile(None, "", "<|im_end|>").expect("compiled");
    let prompt = template.render_prompt(&[message("user", "Hi")]).expect("rendered");
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}
