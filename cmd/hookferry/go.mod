// The requirement of github.com/hookferry/analytics itself is written when a
// release is tagged (CONTRIBUTING.md, "Releases"). Until then go.work at the
// root of the repository provides it.
module github.com/hookferry/analytics/cmd/hookferry

go 1.25.0

// The configuration file.
require github.com/goccy/go-yaml v1.19.2

// Tests.
require (
	github.com/google/go-cmp v0.7.0
	github.com/rogpeppe/go-internal v1.16.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/prometheus/client_golang v1.24.1
	github.com/segmentio/backo-go v1.1.0 // indirect
	go.etcd.io/bbolt v1.4.3 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.70.1 // indirect
	github.com/prometheus/procfs v0.21.1 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
