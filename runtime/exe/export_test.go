package exe

import "context"

// CompileSanitizedDriver compiles the driver for executables with these compiler flags.
func CompileSanitizedDriver(ctx context.Context, dir string, cflags ...string) (*Driver, error) {
	return compileDriver(ctx, dir, false, options{cflags: cflags, dynamic: true})
}
