package check

import (
	_ "github.com/compose-spec/compose-go/v2/cli"
	_ "github.com/hookferry/analytics"
	_ "k8s.io/api/apps/v1"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/policy/v1"
	_ "sigs.k8s.io/yaml"
)
