"""TPU VMs: `runner` is the door, `decide` the thinking, `client` the only file that knows Google's
package."""
