// Package check has the tests of the files that people deploy: those of Kubernetes and of
// Compose. It is a module of its own, outside of the workspace, because of what reads them:
// the types of Kubernetes' API and the loader of Compose.
package check
