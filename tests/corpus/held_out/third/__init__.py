"""The third set of files held out: by Optimum itself, and more of scikit-learn, torchvision and TensorFlow."""
