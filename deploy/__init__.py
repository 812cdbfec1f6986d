"""What runs Bursar: Kubernetes manifests, the images, samples, and `deploy.local`, which runs all
of it on one machine. No role imports this package.
"""
