module github.com/hookferry/analytics/interop/go

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/rudderlabs/analytics-go/v4 v4.2.1
	github.com/segmentio/analytics-go/v3 v3.3.0
	github.com/standard-webhooks/standard-webhooks/libraries v0.0.1
	golang.org/x/oauth2 v0.37.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
)

require (
	github.com/google/uuid v1.3.0 // indirect
	github.com/hookferry/analytics v0.0.0
	github.com/segmentio/backo-go v1.1.0 // indirect
	github.com/tidwall/gjson v1.14.4 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
)

replace github.com/hookferry/analytics => ../../
