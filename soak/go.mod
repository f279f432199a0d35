// The soaks use the other modules of the workspace and are never released.
module github.com/hookferry/analytics/soak

go 1.26.0
