//! Tables for settings made of options.

use super::*;

fn options() -> Options {
    Options {
        node_name: Some("one".into()),
        node_ip: Some("192.0.2.1".parse().unwrap()),
        ..Options::default()
    }
}

#[test]
fn the_life_of_certificates_is_a_duration_within_bounds() {
    assert_eq!(signing_duration(None).unwrap(), pki::csr::LIFE);
    let hour = signing_duration(Some("1h")).unwrap();
    assert_eq!(hour, Duration::from_secs(3600));
    for text in ["", "5", "5s", "-1h", "9000h", "soon"] {
        let error = signing_duration(Some(text)).unwrap_err().to_string();
        assert!(error.starts_with("--cluster-signing-duration: "), "{error}");
    }
}

#[test]
fn addresses_of_both_families_follow_the_machine() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let mut settings = Settings::resolve(options()).unwrap();
    settings.host_ips = vec![ip("192.0.2.1"), ip("2001:db8::1")];
    let follow = |machine: &[&str], preferred: &[&str]| {
        let all = |texts: &[&str]| texts.iter().map(|text| ip(text)).collect::<Vec<_>>();
        let now = settings.clone().following(&host::Current {
            all: all(machine),
            preferred: all(preferred),
            has_default_route: true,
        });
        (now.host_ips.clone(), now.node_ip, now.advertise_address)
    };
    let four = ip("192.0.2.1");
    let six = ["192.0.2.1", "2001:db8::9"];
    assert_eq!(
        follow(&six, &six),
        (vec![four, ip("2001:db8::9")], four, four)
    );
    let other = ["192.0.2.7", "2001:db8::1"];
    let seven = ip("192.0.2.7");
    assert_eq!(
        follow(&other, &other),
        (vec![seven, ip("2001:db8::1")], seven, seven)
    );
    // The last one stays where there is none, and where the only one is a pod's.
    let last = (settings.host_ips.clone(), four, four);
    assert_eq!(follow(&[], &[]), last);
    assert_eq!(follow(&["10.42.0.1"], &["10.42.0.1"]), last);
}

#[test]
fn a_link_that_is_down_for_a_moment_does_not_move_the_node_to_another_interface() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let mut settings = Settings::resolve(options()).unwrap();
    settings.host_ips = vec![ip("192.0.2.1")];
    for (had, has, expected) in [
        // The address and the default route of eth0 are gone, and docker0 has another one.
        (true, false, "192.0.2.1"),
        (true, true, "172.17.0.1"),
        // A machine without a default route.
        (false, false, "172.17.0.1"),
    ] {
        settings.had_default_route = had;
        let now = settings.clone().following(&host::Current {
            all: vec![ip("172.17.0.1")],
            preferred: vec![ip("172.17.0.1")],
            has_default_route: has,
        });
        assert_eq!(now.host_ips, [ip(expected)], "{had} {has}");
    }
}

#[test]
fn defaults_are_those_of_the_design() {
    let settings = Settings::resolve(options()).unwrap();
    assert_eq!(settings.cluster_dns().to_string(), "10.43.0.10");
    assert_eq!(settings.api_service().to_string(), "10.43.0.1");
    assert_eq!(settings.node_ports, 30000..=32767);
    assert_eq!(settings.advertise_address, settings.node_ip);
}

#[test]
fn two_directories_have_two_ids_and_one_directory_has_one() {
    assert_eq!(id(Path::new("/a")), id(Path::new("/a")));
    assert_ne!(id(Path::new("/a")), id(Path::new("/b")));
    assert_eq!(id(Path::new("/a")).len(), 8);
}

#[test]
fn the_pod_range_of_a_node_has_a_size_for_each_family() {
    let masks = |cluster: &str, services: &str, sizes: (Option<u8>, Option<u8>)| {
        let settings = Settings::resolve(Options {
            node_ip: match cluster.contains('.') {
                true => "192.0.2.1,2001:db8::1".parse().ok(),
                false => "2001:db8::1".parse().ok(),
            },
            cluster_cidr: cluster.parse().ok(),
            service_cidr: services.parse().ok(),
            node_cidr_mask_size: sizes.0,
            node_cidr_mask_size_ipv6: sizes.1,
            ..options()
        });
        settings.map(|settings| settings.node_cidr_masks)
    };
    let both = ("10.42.0.0/16,fd42::/56", "10.43.0.0/16,fd43::/112");
    let six = ("fd42::/56", "fd43::/112");
    assert_eq!(masks(both.0, both.1, (None, None)).unwrap(), [24, 64]);
    assert_eq!(masks(both.0, both.1, (Some(26), None)).unwrap(), [26, 64]);
    let sized = masks(both.0, both.1, (Some(25), Some(60))).unwrap();
    assert_eq!(sized, [25, 60]);
    assert_eq!(masks(six.0, six.1, (None, None)).unwrap(), [64]);
    assert_eq!(masks(six.0, six.1, (Some(70), None)).unwrap(), [70]);
    assert_eq!(masks(six.0, six.1, (None, Some(72))).unwrap(), [72]);
    for wrong in [55, 73, 127] {
        let refused = masks(both.0, both.1, (None, Some(wrong)));
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.starts_with("--node-cidr-mask-size-ipv6: "),
            "{refused}"
        );
    }
}

#[test]
fn contradictions_are_refused_by_the_name_of_the_option() {
    let refused = |options: Options| Settings::resolve(options).unwrap_err().to_string();
    let overlap = Options {
        service_cidr: "10.42.1.0/24".parse().ok(),
        ..options()
    };
    assert!(refused(overlap).starts_with("--service-cidr"));
    let inside = Options {
        node_ip: "10.42.0.5".parse().ok(),
        ..options()
    };
    assert!(refused(inside).starts_with("--node-ip"));
    let name = Options {
        node_name: Some("Not_A_Name".into()),
        ..options()
    };
    assert!(refused(name).starts_with("--node-name"));
    let ports = Options {
        service_node_port_range: Some("9-1".into()),
        ..options()
    };
    assert!(refused(ports).starts_with("--service-node-port-range"));
    let audit = Options {
        audit_log_path: Some("/x".into()),
        ..options()
    };
    assert!(refused(audit).starts_with("--audit-policy-file"));
    for mask in [15, 32, 33] {
        let mask = Options {
            node_cidr_mask_size: Some(mask),
            ..options()
        };
        assert!(refused(mask).starts_with("--node-cidr-mask-size"));
    }
    let socket = Options {
        container_runtime_endpoint: Some("tcp:x".into()),
        ..options()
    };
    assert!(refused(socket).starts_with("--container-runtime-endpoint"));
    let plugins = Options {
        cni_bin_dir: Some(vec!["/opt".into()]),
        ..options()
    };
    assert!(refused(plugins).starts_with("--cni-bin-dir"));
    let manifests = Options {
        static_pod_path: Some("/no/such/directory".into()),
        ..options()
    };
    assert!(refused(manifests).starts_with("--static-pod-path"));
    let sysctls = Options {
        allowed_unsafe_sysctls: Some(vec!["vm.swappiness".into()]),
        ..options()
    };
    assert!(refused(sysctls).starts_with("--allowed-unsafe-sysctls"));
    let images = Options {
        image_dir: Some("/".into()),
        container_runtime_endpoint: Some("unix:///x".into()),
        ..options()
    };
    assert!(refused(images).starts_with("--image-dir"));
    for wrong in ["runc", "runc=runc", "Run C=/bin/sh", "runc=/no/such/runc"] {
        let handlers = Options {
            runtime_handlers: Some(vec![wrong.to_owned()]),
            ..options()
        };
        assert!(
            refused(handlers).starts_with("--runtime-handlers"),
            "{wrong}"
        );
    }
}

#[test]
fn a_scheduler_configuration_is_read_or_refused_before_anything_starts() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let named = Options {
        scheduler_config: Some(file.path().to_owned()),
        ..options()
    };
    let with = |rest: &str| {
        std::fs::write(file.path(), format!("{head}{rest}")).unwrap();
        Settings::resolve(named.clone())
    };
    let settings = with("profiles:\n- schedulerName: mine\n").unwrap();
    let document = settings.scheduler_config.unwrap();
    assert_eq!(document["profiles"][0]["schedulerName"], "mine");
    for wrong in ["percentageOfNodesToScore: 101\n", "unknown: 1\n", "- a\n"] {
        let refused = with(wrong).unwrap_err().to_string();
        assert!(refused.starts_with("--scheduler-config"), "{refused}");
    }
}

#[test]
fn registries_and_cni_directories_are_read_from_the_options() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "hosts:\n  r.io:\n    mirrors: [http://127.0.0.1:5000]\n    plainHttp: true\n";
    std::fs::write(file.path(), text).unwrap();
    let named = Options {
        registries: Some(file.path().to_owned()),
        cni_conf_dir: Some("/etc/cni/net.d".into()),
        ..options()
    };
    let settings = Settings::resolve(named.clone()).unwrap();
    let host = &settings.registries.hosts["r.io"];
    assert!(host.plain_http && host.mirrors == ["http://127.0.0.1:5000"]);
    assert_eq!(
        settings.cni.unwrap().bin_dirs,
        CNI_BIN_DIRS.map(PathBuf::from)
    );
    std::fs::write(file.path(), "hosts:\n  r.io:\n    insecure: true\n").unwrap();
    let refused = Settings::resolve(named).unwrap_err().to_string();
    assert!(
        refused.starts_with("--registries") && refused.contains("insecure"),
        "{refused}"
    );
}
