package exe

import "context"

// BuildSanitized builds an executable whose driver has the given compiler flags.
func BuildSanitized(ctx context.Context, m *Model, objects []string, out string, cflags ...string) error {
	return build(ctx, m, objects, out, false, options{cflags: cflags, dynamic: true})
}
