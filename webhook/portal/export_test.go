package portal

// Patterns returns the methods and paths of the API.
func Patterns() (all []string) {
	for _, r := range routes {
		all = append(all, r.pattern)
	}
	return all
}
