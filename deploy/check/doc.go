// Package check tests the files for deployments on Kubernetes and with Compose. It is a module of
// its own, outside of the workspace, because it depends on the types of the Kubernetes API and on
// the loader of Compose.
package check
