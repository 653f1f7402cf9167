use super::*;

#[test]
fn stat_is_read_behind_a_hostile_name() {
    let stat = "4711 (a) b ) (c) S 42 4711 1 0 -1 4194304 100 0 0 0 130 70 5 6 20 0 3 0 1 2 3";
    let found = parse_stat(stat).unwrap();
    assert_eq!((found.parent, found.ticks), (42, 200));
    assert!(parse_stat("4711 (a) S 1").is_err());
}

#[test]
fn idle_time_is_not_busy_time() {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let busy = busy_s("cpu  10 1 5 1000 500 2 3 4 0 0\ncpu0 1 1 1 1\n").unwrap();
    assert!((busy - 25.0 / ticks).abs() < 1e-9);
}

#[test]
fn a_dropped_process_is_reaped() {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process { child };
    let pid = process.child.id();
    assert!(process.rss_bytes().unwrap() > 0 && tree(std::process::id()).unwrap().contains(&pid));
    drop(process);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}
