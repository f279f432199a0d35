// The requirement of github.com/hookferry/analytics itself is written when a
// release is tagged (CONTRIBUTING.md, "Releases"). Until then go.work at the
// root of the repository provides it.
module github.com/hookferry/analytics/cmd/hookferry

go 1.25

// Tests.
require (
	github.com/google/go-cmp v0.7.0
	github.com/rogpeppe/go-internal v1.16.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/segmentio/backo-go v1.1.0 // indirect
	go.etcd.io/bbolt v1.4.3 // indirect
	golang.org/x/sys v0.29.0 // indirect
	golang.org/x/tools v0.26.0 // indirect
)
